/* image.c - which of the kernels' images a driver loads. See image.h. */
#include "transport/gpu/kernel/image.h"

#include <stdio.h>
#include <string.h>

#include "shm/util/base.h"

enum { IMAGES_MAX = 16 };

/* Of two the larger one is better; 0: it does not fit. */
static unsigned image_fit(const struct gpu_image *image, unsigned arch)
{
    if (image->arch > arch)
        return 0;
    switch (image->kind) {
    case GPU_IMAGE_CODE:
        return image->arch / 10 == arch / 10 ? 10000 + image->arch : 0;
    case GPU_IMAGE_PTX:
        return image->arch;
    case GPU_IMAGE_NONE:
        return 1;
    }
    return 0;
}

unsigned gpu_image_order(const struct gpu_image *images, unsigned arch,
                         const struct gpu_image **ret, unsigned max)
{
    unsigned n = 0;

    for (const struct gpu_image *image = images; image->arch && n < max; image++) {
        unsigned fit = image_fit(image, arch), at = n;

        if (!fit)
            continue;
        for (; at && image_fit(ret[at - 1], arch) < fit; at--)
            ret[at] = ret[at - 1];
        ret[at] = image;
        n++;
    }
    return n;
}

static void add_refusal(char *text, size_t len, const char *more)
{
    size_t used = strlen(text);

    snprintf(text + used, len - used, "%s", more);
}

static void image_name(const struct gpu_image *image, char *text, size_t len)
{
    switch (image->kind) {
    case GPU_IMAGE_CODE:
        snprintf(text, len, "sm_%u by %s", image->arch, image->by);
        break;
    case GPU_IMAGE_PTX:
        snprintf(text, len, "%s, compiled by the driver", image->by);
        break;
    case GPU_IMAGE_NONE:
        snprintf(text, len, "commd-gpu was built without a CUDA compiler");
        break;
    }
}

cu_result gpu_image_load(const struct cuda *cu, cu_device dev, const struct gpu_image *images,
                         cu_module *ret, char *text, size_t len)
{
    const struct gpu_image *fit[IMAGES_MAX];
    int major = 0, minor = 0, version = 0;
    char name[64], why[128], line[256];
    cu_result r, last = CU_E_NO_BINARY_FOR_GPU;
    unsigned n;

    r = cu->device_attribute(&major, CU_ATTR_CC_MAJOR, dev);
    r = r ? r : cu->device_attribute(&minor, CU_ATTR_CC_MINOR, dev);
    r = r ? r : cu->driver_version(&version);
    if (r) {
        cuda_text(cu, r, text, len);
        return r;
    }
    n = gpu_image_order(images, (unsigned)(major * 10 + minor), fit, IMAGES_MAX);
    snprintf(text, len, "driver %d.%d loads no kernels for compute capability %d.%d",
             version / 1000, version % 1000 / 10, major, minor);
    for (unsigned i = 0; i < n; i++) {
        image_name(fit[i], name, sizeof name);
        last = cu->module_load(ret, fit[i]->data);
        if (!last) {
            snprintf(text, len, "%s", name);
            return CU_SUCCESS;
        }
        cuda_text(cu, last, why, sizeof why);
        snprintf(line, sizeof line, "; %s: %s", name, why);
        add_refusal(text, len, line);
    }
    return last;
}
