/* flags.c - words that GPUs write and wait for: pages of the process, registered with the driver
 * for all its contexts, divided into slots. The pages are MAP_SHARED: after a fork() the GPU and
 * the parent still see the same pages. They are never freed. */
#include "client/lib/device/memory.h"

#include <sys/mman.h>

#include "shm/util/held.h"
#include "client/lib/device/driver.h"
#include "shm/gpu/session.h"

enum { PAGE_BYTES = SESSION_PAGE, PAGE_SLOTS = PAGE_BYTES / sizeof(struct flag_words) };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct flag_slot *free_slots;

int flags_page(const char *op, size_t bytes, void **ret_page, cu_ptr *ret_at)
{
    const struct cuda *cu = driver(NULL);
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cu_result r;

    assert(bytes % SESSION_PAGE == 0);
    if (p == MAP_FAILED)
        return error_set(error_mine(), COMMD_E_NOMEM, op, "%s: no memory for flags: %s", op,
                         strerror(errno));
    r = cu->host_register(p, bytes, CU_HOST_PORTABLE | CU_HOST_DEVICEMAP);
    if (!r)
        r = cu->host_pointer(ret_at, p, 0);
    if (r) {
        munmap(p, bytes);
        return driver_error(op, "cuMemHostRegister of flags", r);
    }
    *ret_page = p;
    return 0;
}

static int page_add(const char *op)
{
    struct flag_slot *slots = calloc(PAGE_SLOTS, sizeof *slots);
    void *p;
    cu_ptr at;
    int r;

    assert_held(&lock);
    assert(!free_slots);
    if (!slots)
        return error_set(error_mine(), COMMD_E_NOMEM, op, "%s: no memory for flags", op);
    r = flags_page(op, PAGE_BYTES, &p, &at);
    if (r) {
        free(slots);
        return r;
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
