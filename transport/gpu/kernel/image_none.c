/* image_none.c - in the place of the kernels where there was no CUDA compiler. With one, the image
 * is transport/gpu/kernel/move_image.c in the build folder. See transport/gpu/move.h. */
#include "transport/gpu/move.h"

const unsigned char gpu_image[] = {0};
const size_t gpu_image_len = 0;
