/* ring.c - send and receive: a sum that travels around a ring.
 *
 * Each rank passes a block to its right neighbour and takes one from its left, size - 1 times, and
 * adds what it got. After that everybody has seen everybody's block: an all_reduce made by hand.
 * (Use commd_all_reduce() in earnest: it knows the nodes and the shared memory.)
 *
 * All ranks send at the same time. A blocking send of a large block returns when the receiver takes
 * part, so if all did that first, all would wait for ever. Hence: start the send, receive, then
 * wait for the send. */
#include "example.h"

enum { COUNT = 100000, TAG = 1 };

static double sum[COUNT], pass[COUNT], got[COUNT];

int main(int argc, char **argv)
{
    struct example me;
    int left, right;

    example_start(argc, argv, "ring", &me);
    right = (me.rank + 1) % me.size;
    left = (me.rank + me.size - 1) % me.size;
    for (int i = 0; i < COUNT; i++)
        sum[i] = pass[i] = me.rank + i;
    for (int step = 1; step < me.size; step++) {
        struct commd_op send = {.size = sizeof send,
                                .coll = COMMD_SEND,
                                .dtype = COMMD_F64,
                                .send = pass,
                                .count = COUNT,
                                .peer = right,
                                .tag = TAG};
        struct commd_status status;
        struct commd_work *work;

        TRY(commd_start(me.group, &send, NULL, NULL, &work));
        TRY(commd_recv(me.group, got, COUNT, COMMD_F64, left, TAG, &status));
        CHECK(status.source == left && status.bytes == sizeof got);
        TRY(commd_work_wait(work, -1)); /* now `pass` is ours again */
        commd_work_free(work);
        for (int i = 0; i < COUNT; i++)
            sum[i] += got[i];
        memcpy(pass, got, sizeof pass); /* what came from the left goes on to the right */
    }
    for (int i = 0; i < COUNT; i++)
        CHECK(sum[i] == me.size * (me.size - 1) / 2 + (double)i * me.size);
    printf("rank %d: %d blocks from the ring\n", me.rank, me.size);
    example_end(&me);
    return 0;
}
