/* seeds.c - see seeds.h. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/sim/seeds.h"

unsigned seeds_nodes;

struct sim_result sim_result(const struct sim *sim)
{
    return (struct sim_result){.hash = sim_hash(sim),
                               .actions = sim_actions(sim),
                               .ok = sim_answers(sim, true),
                               .failed = sim_answers(sim, false),
                               .recovered = sim_recovered(sim),
                               .taken_over = sim_taken_over(sim),
                               .went_on = sim_kept_on(sim),
                               .renewed = sim_renewed(sim)};
}

static struct sim_result run_twice(seed_fn run, uint64_t seed)
{
    struct sim_result first = run(seed, false), second = run(seed, false);

    if (first.hash != second.hash || first.actions != second.actions) {
        fprintf(stderr, "seed %llu does not do the same twice\n", (unsigned long long)seed);
        abort();
    }
    return first;
}

static void add_result(struct sim_result *sum, const struct sim_result *r)
{
    sum->actions += r->actions;
    sum->ok += r->ok;
    sum->failed += r->failed;
    sum->recovered += r->recovered;
    sum->taken_over += r->taken_over;
    sum->went_on += r->went_on;
    sum->renewed += r->renewed;
}

bool seeds_run(int argc, char **argv, const char *name, seed_fn run, uint64_t *ret_first,
               uint64_t *ret_n, struct sim_result *ret_sum)
{
    bool trace = false;

    *ret_first = *ret_n = 1;
    *ret_sum = (struct sim_result){0};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            *ret_first = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--seeds") && i + 1 < argc)
            *ret_n = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--nodes") && i + 1 < argc)
            seeds_nodes = (unsigned)strtoul(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--trace"))
            trace = true;
        else
            seeds_nodes = 1;
    }
    if (seeds_nodes == 1 || seeds_nodes > SIM_NODES) {
        fprintf(stderr, "usage: %s [--seed FIRST] [--seeds N] [--nodes 2..%u] [--trace]\n", name,
                (unsigned)SIM_NODES);
        return false;
    }
    printf("%s --seed %llu --seeds %llu\n", name, (unsigned long long)*ret_first,
           (unsigned long long)*ret_n);
    fflush(stdout);
    if (trace) {
        *ret_sum = run(*ret_first, true);
        printf("hash %016llx\n", (unsigned long long)ret_sum->hash);
        return true;
    }
    for (uint64_t seed = *ret_first; seed < *ret_first + *ret_n; seed++) {
        struct sim_result r = run_twice(run, seed);

        add_result(ret_sum, &r);
    }
    return true;
}
