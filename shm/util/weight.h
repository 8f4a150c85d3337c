/* weight.h - what users get beside each other, of the way between nodes and of a GPU, is as their
 * weights are: commd reads these from its configuration, engines and GPU services share by them. */
#ifndef COMMD_WEIGHT_H
#define COMMD_WEIGHT_H

enum {
    USER_WEIGHT = 10, /* of who has none */
    USER_WEIGHT_MAX = 1000,
};

#endif
