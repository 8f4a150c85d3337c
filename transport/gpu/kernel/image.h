/* image.h - the kernels as machine code, and which of it a GPU's driver loads.
 *
 * There is code for some architectures, and one text in PTX, which a driver compiles. A driver
 * loads code of an architecture for GPUs of the same generation (sm_80 on 8.9), if an assembler of
 * its major version or of an older one made it: a driver of CUDA 12 refuses what CUDA 13 makes. So
 * code for GPUs that CUDA 12 knows is made by an assembler of CUDA 12 where the build has one. A
 * driver compiles PTX up to the version that it knows; that of the text is CUDA 11.7's, the oldest
 * driver that commd takes, so each of them compiles it, also for newer GPUs. That takes long, so it
 * comes last. doc/gpu-kernels.md says what the build makes. */
#ifndef COMMD_GPU_IMAGE_H
#define COMMD_GPU_IMAGE_H

#include "shm/gpu/cuda.h"

/* NONE: there was no CUDA compiler. Drivers refuse it, but for tests/fakecuda. */
enum gpu_image_kind { GPU_IMAGE_CODE, GPU_IMAGE_PTX, GPU_IMAGE_NONE };

struct gpu_image {
    enum gpu_image_kind kind;
    unsigned arch;  /* 90: sm_90; 0 ends a list */
    const char *by; /* "CUDA 12.6": the assembler; "PTX 7.7" */
    const unsigned char *data;
};

/* What was built in, without order. */
extern const struct gpu_image gpu_images[];

/* Those of @images that may fit a GPU of compute capability @arch (90: 9.0), best first: at most
 * @max of them in @ret. Returns how many. */
unsigned gpu_image_order(const struct gpu_image *images, unsigned arch,
                         const struct gpu_image **ret, unsigned max);
/* Loads the first that the driver takes into the current context, that of @dev. @text says which
 * one, or, with an error, why each was refused. */
cu_result gpu_image_load(const struct cuda *cu, cu_device dev, const struct gpu_image *images,
                         cu_module *ret, char *text, size_t len);

#endif
