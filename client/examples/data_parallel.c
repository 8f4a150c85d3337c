/* data_parallel.c - a gradient loop: every rank has data of its own and the same model.
 *
 * The model is y = w . x with FEATURES weights. In each step every rank computes the gradient over
 * its own samples; the average over all ranks is what one process would have found over all
 * samples.
 *
 * The gradient is computed bucket by bucket, as a deep network's is layer by layer, and the
 * all_reduce of a bucket is started as soon as it is there: it progresses while the next bucket is
 * being computed. Works of a group complete in the order in which they were started, on all ranks.
 */
#include "example.h"

enum { FEATURES = 64, BUCKETS = 4, BUCKET = FEATURES / BUCKETS, SAMPLES = 256, STEPS = 200 };

static float x[SAMPLES][FEATURES], y[SAMPLES], w[FEATURES], gradient[FEATURES], error[SAMPLES];

/* -1 to 1, the same on every machine. */
static float draw(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (1 << 23) - 1;
}

static float truth(int feature)
{
    return (float)(feature % 7) - 3;
}

static void make_data(int rank)
{
    unsigned state = (unsigned)rank + 1;

    for (int s = 0; s < SAMPLES; s++)
        for (int f = 0; f < FEATURES; f++) {
            x[s][f] = draw(&state);
            y[s] += truth(f) * x[s][f];
        }
}

/* What the model gets wrong; returns the mean of its square. */
static float forward(void)
{
    float loss = 0;

    for (int s = 0; s < SAMPLES; s++) {
        error[s] = -y[s];
        for (int f = 0; f < FEATURES; f++)
            error[s] += w[f] * x[s][f];
        loss += error[s] * error[s] / SAMPLES;
    }
    return loss;
}

static void backward(int bucket)
{
    for (int f = bucket * BUCKET; f < (bucket + 1) * BUCKET; f++) {
        gradient[f] = 0;
        for (int s = 0; s < SAMPLES; s++)
            gradient[f] += 2 * error[s] * x[s][f] / SAMPLES;
    }
}

static void step(struct example *me)
{
    struct commd_work *works[BUCKETS];

    for (int b = 0; b < BUCKETS; b++) {
        float *part = gradient + b * BUCKET;
        struct commd_op op = {.size = sizeof op,
                              .coll = COMMD_ALL_REDUCE,
                              .dtype = COMMD_F32,
                              .redop = COMMD_AVG,
                              .send = part,
                              .recv = part,
                              .count = BUCKET};

        backward(b);
        TRY(commd_start(me->group, &op, NULL, NULL, &works[b]));
    }
    for (int b = 0; b < BUCKETS; b++) {
        TRY(commd_work_wait(works[b], -1));
        commd_work_free(works[b]);
        for (int f = b * BUCKET; f < (b + 1) * BUCKET; f++)
            w[f] -= 0.3f * gradient[f];
    }
}

int main(int argc, char **argv)
{
    float least[FEATURES], most[FEATURES], loss;
    struct example me;

    example_start(argc, argv, "data_parallel", &me);
    make_data(me.rank);
    for (int i = 0; i < STEPS; i++) {
        forward();
        step(&me);
    }
    loss = forward();
    TRY(commd_all_reduce(me.group, &loss, &loss, 1, COMMD_F32, COMMD_AVG));
    CHECK(loss < 1e-4f);
    /* all ranks must hold bit for bit the same model, or they drift apart */
    TRY(commd_all_reduce(me.group, w, least, FEATURES, COMMD_F32, COMMD_MIN));
    TRY(commd_all_reduce(me.group, w, most, FEATURES, COMMD_F32, COMMD_MAX));
    CHECK(!memcmp(least, most, sizeof least));
    if (me.rank == 0)
        printf("loss %g after %d steps of %d ranks\n", (double)loss, STEPS, me.size);
    example_end(&me);
    return 0;
}
