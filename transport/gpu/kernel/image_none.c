/* image_none.c - in the place of the kernels where there was no CUDA compiler. With one, they are
 * in transport/gpu/kernel/move_image.c in the build folder. See image.h. */
#include "transport/gpu/kernel/image.h"

static const unsigned char nothing[1];
const struct gpu_image gpu_images[] = {{GPU_IMAGE_NONE, 1, "", nothing},
                                       {GPU_IMAGE_NONE, 0, NULL, NULL}};
