/* pipeline.c - a model in two stages on two ranks: activations forward, gradients back.
 *
 * Stage 0 computes h = a * x, stage 1 computes y = b * h; to be learned is y = 6 x. A batch is cut
 * into micro-batches, so that stage 1 works on one while stage 0 already computes the next. The
 * number of the micro-batch is the tag: stage 0 takes the gradients in whatever order it likes.
 *
 *   stage 0   forward 0, 1, 2, 3 ............ backward 0, 1, 2, 3, update
 *   stage 1            forward+backward 0, 1, 2, 3 ........ update
 */
#include "example.h"

enum { MICRO = 4, ROWS = 32, STEPS = 100, BACK = 1000 /* tags of gradients */ };

static double x[MICRO][ROWS], h[MICRO][ROWS], dh[MICRO][ROWS];

static double stage0(struct example *me, double a)
{
    struct commd_work *sent[MICRO];
    double da = 0;

    for (int m = 0; m < MICRO; m++) {
        struct commd_op op = {.size = sizeof op,
                              .coll = COMMD_SEND,
                              .dtype = COMMD_F64,
                              .send = h[m],
                              .count = ROWS,
                              .peer = 1,
                              .tag = m};

        for (int r = 0; r < ROWS; r++)
            h[m][r] = a * x[m][r];
        TRY(commd_start(me->group, &op, NULL, NULL, &sent[m])); /* and on to the next */
    }
    for (int m = MICRO - 1; m >= 0; m--) {
        TRY(commd_recv(me->group, dh[m], ROWS, COMMD_F64, 1, BACK + m, NULL));
        for (int r = 0; r < ROWS; r++)
            da += dh[m][r] * x[m][r];
    }
    for (int m = 0; m < MICRO; m++) {
        TRY(commd_work_wait(sent[m], -1));
        commd_work_free(sent[m]);
    }
    return da;
}

static double stage1(struct example *me, double b)
{
    double db = 0;

    for (int m = 0; m < MICRO; m++) {
        TRY(commd_recv(me->group, h[m], ROWS, COMMD_F64, 0, m, NULL));
        for (int r = 0; r < ROWS; r++) {
            double dy = 2 * (b * h[m][r] - 6 * x[m][r]) / (MICRO * ROWS);

            dh[m][r] = dy * b;
            db += dy * h[m][r];
        }
        TRY(commd_send(me->group, dh[m], ROWS, COMMD_F64, 0,
                       BACK + m)); /* small: returns at once */
    }
    return db;
}

int main(int argc, char **argv)
{
    double weight, weights[2];
    struct example me;

    example_start(argc, argv, "pipeline", &me);
    if (me.size != 2) {
        fprintf(stderr, "this pipeline has two stages: start it with two ranks\n");
        return 2;
    }
    for (int i = 0; i < MICRO * ROWS; i++)
        x[i / ROWS][i % ROWS] = (double)i / (MICRO * ROWS);
    weight = me.rank ? 2.0 : 1.0;
    for (int i = 0; i < STEPS; i++)
        weight -= 0.1 * (me.rank ? stage1(&me, weight) : stage0(&me, weight));
    TRY(commd_all_gather(me.group, &weight, weights, 1, COMMD_F64));
    CHECK(weights[0] * weights[1] > 5.99 && weights[0] * weights[1] < 6.01);
    if (me.rank == 0)
        printf("a %.3f, b %.3f: y = %.3f x\n", weights[0], weights[1], weights[0] * weights[1]);
    example_end(&me);
    return 0;
}
