/* flags.c - words that GPUs write and wait for: pages of the process, registered with the driver
 * for all its contexts, divided into slots. The pages are MAP_SHARED: after a fork() the GPU and
 * the parent still see the same pages. They are never freed. */
#include "client/lib/device/memory.h"

#include <sys/mman.h>

#include "shm/util/held.h"
#include "client/lib/device/driver.h"

enum { PAGE_BYTES = 64 << 10, PAGE_SLOTS = PAGE_BYTES / sizeof(struct flag_words) };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct flag_slot *free_slots;

static int page_add(const char *op)
{
    struct flag_slot *slots = calloc(PAGE_SLOTS, sizeof *slots);
    const struct cuda *cu = driver(NULL);
    cu_ptr at;
    cu_result r;
    void *p;

    assert_held(&lock);
    assert(!free_slots);
    if (!slots)
        return error_set(error_mine(), COMMD_E_NOMEM, op, "%s: no memory for flags", op);
    p = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        free(slots);
        return error_set(error_mine(), COMMD_E_NOMEM, op, "%s: no memory for flags: %s", op,
                         strerror(errno));
    }
    r = cu->host_register(p, PAGE_BYTES, CU_HOST_PORTABLE | CU_HOST_DEVICEMAP);
    if (!r)
        r = cu->host_pointer(&at, p, 0);
    if (r) {
        munmap(p, PAGE_BYTES);
        free(slots);
        return driver_error(op, "cuMemHostRegister of flags", r);
    }
    for (unsigned i = 0; i < PAGE_SLOTS; i++) {
        slots[i].words = (struct flag_words *)p + i;
        slots[i].at = at + i * sizeof(struct flag_words);
        slots[i].next = i + 1 < PAGE_SLOTS ? &slots[i + 1] : NULL;
    }
    free_slots = slots;
    return 0;
}

int flags_take(const char *op, struct flag_slot **ret_slot)
{
    int r = 0;

    pthread_mutex_lock(&lock);
    if (!free_slots)
        r = page_add(op);
    assert(r || free_slots);
    if (!r) {
        *ret_slot = free_slots;
        free_slots = free_slots->next;
    }
    pthread_mutex_unlock(&lock);
    return r;
}

void flags_give(struct flag_slot *slot)
{
    assert(slot->words);
    pthread_mutex_lock(&lock);
    slot->next = free_slots;
    free_slots = slot;
    pthread_mutex_unlock(&lock);
}
