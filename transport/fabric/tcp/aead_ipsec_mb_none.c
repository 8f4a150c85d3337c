/* aead_ipsec_mb_none.c - what stands for libipsec-mb in a build without it. */
#include "transport/fabric/tcp/aead.h"

const struct aead_ops *aead_ipsec_mb(void)
{
    return NULL;
}
