/* place.c - puts pages on the node of memory of their reader.
 *
 * A page of a board lies on the node of memory of the process that touches it first. That is right
 * for windows and slots: a member writes its own, and all others read them. It is wrong for pages
 * that others or the engine write and one member alone reads, over and over while it waits: its
 * rings, and the slots in which the engine puts messages for it. So a member that joins puts those
 * on its own node.
 *
 * It does so by mbind(2), whose policy belongs to the file and costs no memory. A container may
 * refuse that. Then the member touches its rings first, which is as good, and costs a page for each
 * rank of the group. The slots are too large for that, and stay where they are.
 *
 * A member that may run on several nodes has no node of its own, and nothing is done. */
#include "shm/board/place.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/util/topology.h"

enum { NODES_MOST = 1024, BITS = 8 * sizeof(unsigned long) };

bool place_bind(void *at, size_t len, unsigned node)
{
    unsigned long mask[NODES_MOST / BITS] = {0};

    if (node >= NODES_MOST)
        return false;
    mask[node / BITS] = 1ul << node % BITS;
    /* "preferred": where that node is full, another one is better than none */
    return syscall(SYS_mbind, at, len, MPOL_PREFERRED, mask, NODES_MOST + 1, 0) == 0;
}

struct page_range {
    uint8_t *at;
    size_t len;
};

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* The pages that lie in it wholly: those at its ends belong to others as well. */
static struct page_range whole_pages(const void *at, size_t len)
{
    uintptr_t page = page_size(), begin = ALIGN_UP((uintptr_t)at, page);
    uintptr_t end = ((uintptr_t)at + len) & ~(page - 1);

    return (struct page_range){(uint8_t *)begin, end > begin ? end - begin : 0};
}

static void touch(struct page_range r)
{
    for (size_t page = page_size(), at = 0; at < r.len; at += page)
        (void)*(volatile const uint8_t *)(r.at + at);
}

void place_member(const struct board *b, unsigned local, unsigned node, place_fn bind)
{
    const struct mail *m = &b->mail;
    struct mail_rx rx;
    struct page_range rings, in, slots;

    assert(local < b->nlocal);
    mail_rx_init(m, local, 0, &rx);
    rings = whole_pages(rx.cells, (size_t)m->world * m->ring * sizeof *rx.cells);
    if (rings.len && !bind(rings.at, rings.len, node)) {
        touch(rings);
        return;
    }
    if (m->nnodes < 2)
        return;
    in = whole_pages(mail_in(m, local, 0), MAIL_IN_SLOTS * m->chunk);
    slots = whole_pages(mail_rx_slot(m, local, 0, 0), MAIL_RX_SLOTS * m->world * m->rx_bytes);
    if (in.len)
        bind(in.at, in.len, node);
    if (slots.len)
        bind(slots.at, slots.len, node);
}

void place_joined(const struct board *b, unsigned local)
{
    cpu_set_t set;
    int node;

    if (b->memory_nodes < 2 || sched_getaffinity(0, sizeof set, &set) < 0)
        return;
    node = topology_node_of("/sys/devices/system", &set);
    if (node >= 0)
        place_member(b, local, (unsigned)node, place_bind);
}

const char *place_way(void)
{
    size_t page = page_size();
    bool bound = false;
    void *at;

    if (topology_here()->nodes < 2)
        return "no";
    at = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at != MAP_FAILED) {
        bound = place_bind(at, page, 0);
        munmap(at, page);
    }
    return bound ? "bind" : "touch";
}
