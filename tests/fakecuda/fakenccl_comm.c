/* fakenccl_comm.c - communicators: meeting, errors, ending.
 *
 * A communicator is NCCL_IN_PROGRESS until all its ranks have met; a thread sees to it. What goes
 * wrong later is its state, and its operations then wait until it is aborted, as on hardware. A
 * rank that died is noticed by the others (NCCL_E_REMOTE; FAKENCCL_DEAF=1: not). */
#include "tests/fakecuda/fakenccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char last_error[256];
static pthread_mutex_t error_lock = PTHREAD_MUTEX_INITIALIZER;

nccl_result fake_fail(nccl_result r, const char *format, ...)
{
    va_list ap;

    pthread_mutex_lock(&error_lock);
    va_start(ap, format);
    vsnprintf(last_error, sizeof last_error, format, ap);
    va_end(ap);
    pthread_mutex_unlock(&error_lock);
    return r;
}

const char *ncclGetLastError(nccl_comm comm)
{
    static __thread char text[256];

    pthread_mutex_lock(&error_lock);
    memcpy(text, last_error, sizeof text);
    pthread_mutex_unlock(&error_lock);
    return text;
}

uint64_t fake_hash(const void *data, size_t bytes, uint64_t h)
{
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return h;
}

long fake_knob_number(const char *name, long otherwise)
{
    char text[32];

    return fakecuda_knob(name, text, sizeof text) && text[0] ? strtol(text, NULL, 0) : otherwise;
}

bool fake_knob_hits(const char *name, int rank, unsigned op, int *code)
{
    char text[32];
    int r, given = 0;
    unsigned n;

    if (!fakecuda_knob(name, text, sizeof text) || sscanf(text, "%d:%u:%d", &r, &n, &given) < 2 ||
        r != rank || n != op)
        return false;
    if (given)
        *code = given;
    return true;
}

void fake_nap(unsigned long *us)
{
    struct timespec t = {0, (long)*us * 1000};

    nanosleep(&t, NULL);
    *us = *us < 200 ? *us * 2 : *us;
}

/* ---- life ------------------------------------------------------------------------------------ */

void fake_comm_ref(nccl_comm comm)
{
    pthread_mutex_lock(&comm->lock);
    comm->refs++;
    comm->pending++;
    pthread_mutex_unlock(&comm->lock);
}

static void unref(nccl_comm comm, int pending)
{
    bool last;

    pthread_mutex_lock(&comm->lock);
    comm->pending -= pending;
    pthread_cond_broadcast(&comm->idle);
    last = --comm->refs == 0;
    pthread_mutex_unlock(&comm->lock);
    if (!last)
        return;
    for (int i = 0; i < FAKE_RANKS; i++)
        if (comm->watches[i] >= 0)
            close(comm->watches[i]);
    fake_table_unmap(comm->table);
    pthread_mutex_destroy(&comm->lock);
    pthread_cond_destroy(&comm->idle);
    free(comm);
}

void fake_comm_unref(nccl_comm comm)
{
    unref(comm, 1);
}

void fake_comm_set(nccl_comm comm, nccl_result r)
{
    nccl_result old = NCCL_SUCCESS;

    if (!atomic_compare_exchange_strong(&comm->state, &old, r) && old == NCCL_IN_PROGRESS)
        atomic_compare_exchange_strong(&comm->state, &old, r);
}

bool fake_comm_stop(nccl_comm comm)
{
    return atomic_load(&comm->aborted) || fakecuda_broken(comm->dev);
}

void fake_comm_watch(nccl_comm comm)
{
    for (int i = 0; i < comm->world; i++) {
        struct pollfd p = {.fd = comm->watches[i], .events = POLLIN};

        if (p.fd < 0 || poll(&p, 1, 0) <= 0 || fake_knob_number("FAKENCCL_DEAF", 0))
            continue;
        fake_fail(NCCL_E_REMOTE, "rank %d has exited", i);
        fake_comm_set(comm, NCCL_E_REMOTE);
    }
}

/* ---- meeting --------------------------------------------------------------------------------- */

bool fake_comm_barrier(nccl_comm comm)
{
    struct fake_table *t = comm->table;
    uint64_t step = ++comm->step;
    unsigned long us = 5;

    atomic_store_explicit(&t->seats[comm->rank].step, step, memory_order_release);
    for (int i = 0; i < comm->world; i++) {
        for (unsigned n = 0; atomic_load_explicit(&t->seats[i].step, memory_order_acquire) < step;
             n++) {
            if (fake_comm_stop(comm))
                return false;
            if (n % 64 == 63)
                fake_comm_watch(comm);
            fake_nap(&us);
        }
    }
    return !fake_comm_stop(comm);
}

static nccl_result take_seat(nccl_comm comm)
{
    struct fake_seat *seat = &comm->table->seats[comm->rank];
    char host[128];
    int none = 0;

    if (!fakecuda_knob("NCCL_HOSTID", host, sizeof host) &&
        !fakecuda_knob("FAKECUDA_HOST", host, sizeof host) && gethostname(host, sizeof host))
        host[0] = '\0';
    host[sizeof host - 1] = '\0';
    if (!atomic_compare_exchange_strong(&comm->table->world, &none, comm->world) &&
        none != comm->world)
        return fake_fail(NCCL_E_ARGUMENT, "another rank says that there are %d ranks, not %d", none,
                         comm->world);
    none = 0;
    if (!atomic_compare_exchange_strong(&seat->pid, &none, getpid()))
        return fake_fail(NCCL_E_ARGUMENT, "rank %d is there twice", comm->rank);
    seat->host = fake_hash(host, strlen(host), 0xcbf29ce484222325u);
    memcpy(seat->bus_id, comm->bus_id, sizeof seat->bus_id);
    seat->dev = comm->dev;
    return NCCL_SUCCESS;
}

static nccl_result look_around(nccl_comm comm)
{
    const struct fake_seat *seats = comm->table->seats;

    for (int i = 0; i < comm->world; i++)
        for (int j = 0; j < i; j++)
            if (seats[i].host == seats[j].host && !memcmp(seats[i].bus_id, seats[j].bus_id, 16))
                return fake_fail(NCCL_E_USAGE,
                                 "Duplicate GPU detected : rank %d and rank %d both on CUDA device "
                                 "%s",
                                 i, j, seats[i].bus_id);
    for (int i = 0; i < comm->world; i++) {
        int pid = atomic_load(&seats[i].pid);

        if (pid != getpid())
            comm->watches[i] = (int)syscall(SYS_pidfd_open, pid, 0);
        else
            fakecuda_tie(comm->dev, seats[i].dev);
    }
    return NCCL_SUCCESS;
}

static nccl_result meet(nccl_comm comm)
{
    unsigned long us = 100, waited = 0;
    int code = NCCL_E_SYSTEM, rank;
    char text[32];
    nccl_result r;

    if (fakecuda_knob("FAKENCCL_FAIL_INIT", text, sizeof text) &&
        sscanf(text, "%d:%d", &rank, &code) >= 1 && rank == comm->rank)
        return fake_fail(code, "FAKENCCL_FAIL_INIT");
    while (fake_table_find(&comm->id, &comm->table)) {
        if (fake_comm_stop(comm) || (waited += us) > 10000000)
            return fake_fail(NCCL_E_REMOTE, "nobody answers at this unique id");
        fake_nap(&us);
    }
    r = take_seat(comm);
    if (r)
        return r;
    if (!fake_comm_barrier(comm))
        return fake_fail(NCCL_E_INTERNAL, "aborted");
    return look_around(comm);
}

static void *meeting(void *arg)
{
    nccl_comm comm = arg;
    nccl_result r = meet(comm), state = NCCL_IN_PROGRESS;

    atomic_compare_exchange_strong(&comm->state, &state, r);
    fake_comm_unref(comm);
    return NULL;
}

bool fake_comm_begin(nccl_comm comm)
{
    pthread_t thread;

    fake_comm_ref(comm);
    if (pthread_create(&thread, NULL, meeting, comm)) {
        fake_comm_set(comm, NCCL_E_SYSTEM);
        fake_comm_unref(comm);
        return false;
    }
    pthread_detach(thread);
    return true;
}

nccl_result fake_comm_wait(nccl_comm comm)
{
    unsigned long us = 20;
    nccl_result r;

    while ((r = atomic_load(&comm->state)) == NCCL_IN_PROGRESS)
        fake_nap(&us);
    return r;
}

nccl_result fake_comm_ready(nccl_comm comm)
{
    nccl_result r;

    if (!comm)
        return fake_fail(NCCL_E_ARGUMENT, "no communicator");
    if (atomic_load(&comm->aborted) || atomic_load(&comm->finalized))
        return fake_fail(NCCL_E_ARGUMENT, "the communicator is finalized");
    r = atomic_load(&comm->state);
    if (r == NCCL_IN_PROGRESS || atomic_load(&comm->launching))
        return fake_fail(NCCL_E_ARGUMENT, "the communicator is not ready");
    return r;
}

/* ---- ending ---------------------------------------------------------------------------------- */

nccl_result ncclCommGetAsyncError(nccl_comm comm, nccl_result *state)
{
    if (!comm || !state)
        return fake_fail(NCCL_E_ARGUMENT, "no communicator");
    *state = atomic_load(&comm->state);
    if (*state == NCCL_SUCCESS && atomic_load(&comm->polls) > 0) {
        atomic_fetch_sub(&comm->polls, 1);
        *state = NCCL_IN_PROGRESS;
    }
    if (*state == NCCL_SUCCESS && atomic_load(&comm->launching))
        *state = NCCL_IN_PROGRESS;
    if (*state == NCCL_SUCCESS && atomic_load(&comm->finalized)) {
        pthread_mutex_lock(&comm->lock);
        if (comm->pending)
            *state = NCCL_IN_PROGRESS;
        pthread_mutex_unlock(&comm->lock);
    }
    return NCCL_SUCCESS;
}

static void drain(nccl_comm comm)
{
    pthread_mutex_lock(&comm->lock);
    while (comm->pending)
        pthread_cond_wait(&comm->idle, &comm->lock);
    pthread_mutex_unlock(&comm->lock);
}

nccl_result ncclCommFinalize(nccl_comm comm)
{
    nccl_result r = fake_comm_ready(comm);

    if (r)
        return r;
    atomic_store(&comm->finalized, true);
    if (!comm->blocking)
        return NCCL_IN_PROGRESS;
    drain(comm);
    return NCCL_SUCCESS;
}

/* Waits for its operations: forever, if one hangs. */
nccl_result ncclCommDestroy(nccl_comm comm)
{
    if (!comm)
        return NCCL_SUCCESS;
    drain(comm);
    unref(comm, 0);
    return NCCL_SUCCESS;
}

/* FAKENCCL_ABORT_ALONE: an abort that ends nothing is not beside what runs on its device, for which
 * it would wait. */
static void check_alone(nccl_comm comm)
{
    bool none;

    pthread_mutex_lock(&comm->lock);
    none = !comm->pending;
    pthread_mutex_unlock(&comm->lock);
    if (none && fake_device_busy(comm->dev) && fake_knob_number("FAKENCCL_ABORT_ALONE", 0)) {
        fprintf(stderr, "fakenccl: an idle communicator is aborted on a busy device\n");
        abort();
    }
}

/* What runs ends at once, what waits in streams when it is its turn. Two at once never come back in
 * NCCL before 2.19.1. */
nccl_result ncclCommAbort(nccl_comm comm)
{
    static atomic_int aborts;
    unsigned long us = 20;
    bool beside;

    if (!comm)
        return NCCL_SUCCESS;
    check_alone(comm);
    beside = atomic_fetch_add(&aborts, 1);
    while (beside && fake_knob_number("FAKENCCL_VERSION", 22809) < 21901)
        fake_nap(&us);
    while (fake_knob_number("FAKENCCL_ABORT_HANGS", 0))
        usleep(1000);
    atomic_store(&comm->aborted, true);
    while (atomic_load(&comm->launching))
        fake_nap(&us);
    if (fake_knob_number("FAKENCCL_ABORT_FREES", 0))
        fakecuda_settle(comm->dev);
    unref(comm, 0);
    atomic_fetch_sub(&aborts, 1);
    return NCCL_SUCCESS;
}
