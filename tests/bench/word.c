/* word.c - how long a word takes to a core and back.
 *
 *     word [A B]...       two cores each; prints "A B NANOSECONDS" for each pair
 *
 * A thread on each core waits until the other has written the next number into a shared word. The
 * least of ROUNDS rounds is printed: what the host takes away between them is not the machine's.
 * Built and run by machine.py. */
#include <pthread.h>
#include <sched.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 20, EXCHANGES = 5000 };

static alignas(128) _Atomic unsigned word;

static void keep_to(int core)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof set, &set)) {
        perror("sched_setaffinity");
        exit(1);
    }
}

static void wait_for(unsigned number)
{
    while (atomic_load_explicit(&word, memory_order_acquire) != number)
        ;
}

static void *answer(void *core)
{
    keep_to(*(const int *)core);
    for (unsigned i = 0; i < ROUNDS * EXCHANGES; i++) {
        wait_for(2 * i + 1);
        atomic_store_explicit(&word, 2 * i + 2, memory_order_release);
    }
    return NULL;
}

static double now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double measure(int a, int b)
{
    pthread_t other;
    double least = 1e18;

    atomic_store(&word, 0);
    if (pthread_create(&other, NULL, answer, &b)) {
        perror("pthread_create");
        exit(1);
    }
    keep_to(a);
    for (unsigned round = 0, i = 0; round < ROUNDS; round++) {
        double begin = now_ns(), ns;

        for (unsigned n = 0; n < EXCHANGES; n++, i++) {
            atomic_store_explicit(&word, 2 * i + 1, memory_order_release);
            wait_for(2 * i + 2);
        }
        ns = (now_ns() - begin) / EXCHANGES;
        least = ns < least ? ns : least;
    }
    pthread_join(other, NULL);
    return least;
}

int main(int argc, char **argv)
{
    if (argc % 2 == 0) {
        fprintf(stderr, "usage: word [A B]...\n");
        return 64;
    }
    for (int i = 1; i < argc; i += 2)
        printf("%s %s %.0f\n", argv[i], argv[i + 1], measure(atoi(argv[i]), atoi(argv[i + 1])));
    return 0;
}
