/* weight.h - users share the way between nodes, and a GPU, in proportion to their weights. commd
 * reads the weights from its configuration; engines and GPU services share by them. */
#ifndef COMMD_WEIGHT_H
#define COMMD_WEIGHT_H

enum {
    USER_WEIGHT = 10, /* of a user that has none */
    USER_WEIGHT_MAX = 1000,
};

#endif
