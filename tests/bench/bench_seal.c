/* bench_seal.c - what encryption costs a core: records alone, by each library that has the cipher,
 * and a stream between two fabrics of one thread, in the clear and encrypted as an engine would. It
 * prints the time on the core, of the best round of many, so that what else runs on the machine
 * disturbs little.
 *
 *     bench_seal
 *
 * The last column of the records is the rate of data that are encrypted on one side and decrypted
 * on the other by one core each. Not part of make check. */
#include <errno.h>
#include <stdio.h>
#include <time.h>

#include <openssl/crypto.h>

#include "tests/bench/two_ends.h"
#include "transport/fabric/tcp/aead.h"

enum { ROUNDS = 200, RECORDS = 50, AHEAD = 4, BODIES = 64 };

static double core_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

/* ---- records alone --------------------------------------------------------------------------- */

static void records(const struct aead_ops *ops, enum seal_cipher cipher, const char *name,
                    size_t len)
{
    static uint8_t data[SEAL_DATA], got[SEAL_DATA], sealed[RECORDS][SEAL_DATA + SEAL_MORE];
    static const uint8_t secret[SEAL_SECRET] = {1};
    struct seal *out = seal_new_by(ops, cipher, secret, true),
                *in = seal_new_by(ops, cipher, secret, false);
    struct iovec iov = {data, len};
    double put = 1e18, get = 1e18;

    if (!out || !in)
        die("libcrypto lacks a cipher");
    for (unsigned round = 0; round < ROUNDS; round++) {
        double begin = core_ns(), middle;

        for (unsigned i = 0; i < RECORDS; i++)
            if (seal_put(out, &iov, 1, sealed[i]))
                die("cannot encrypt");
        middle = core_ns();
        for (unsigned i = 0; i < RECORDS; i++)
            if (seal_get(in, sealed[i], got))
                die("cannot decrypt");
        put = MIN(put, (middle - begin) / RECORDS);
        get = MIN(get, (core_ns() - middle) / RECORDS);
    }
    printf("%-26s %8zu %10.0f %10.0f %8.2f\n", name, len, put, get, (double)len / MAX(put, get));
    seal_free(out);
    seal_free(in);
}

/* ---- a stream between two fabrics ------------------------------------------------------------ */

/* Time on the core for @n bodies of @len bytes there, and for each of them to be there. */
static double pass(struct end e[2], const uint8_t *body, size_t len, unsigned n)
{
    double begin = core_ns();

    e[1].got = 0;
    for (unsigned i = 0; i < n || e[1].got < n || e[0].inflight; ends_turn(e)) {
        if (i == n || i - e[1].got >= AHEAD)
            continue;
        end_send(&e[0], body, len);
        i++;
    }
    return (core_ns() - begin) / n;
}

static void stream(enum fabric_encryption encryption, const char *name)
{
    static const size_t sizes[] = {8, 4096, END_BODY};
    uint8_t *body = calloc(1, END_BODY);
    struct end e[2];

    end_open(&e[0], encryption, 0, AHEAD);
    end_open(&e[1], encryption, 0, AHEAD);
    ends_meet(e);
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
        double best = 1e18;

        for (unsigned round = 0; round < ROUNDS; round++)
            best = MIN(best, pass(e, body, sizes[i], BODIES));
        printf("%-26s %8zu %10.0f %19.2f\n", name, sizes[i], best, (double)sizes[i] / best);
    }
    for (unsigned i = 0; i < 2; i++)
        end_close(&e[i]);
    free(body);
}

int main(void)
{
    static const size_t sizes[] = {64, 4096, SEAL_DATA};
    const struct aead_ops *ipsec_mb = aead_ipsec_mb();

    printf("%s\n\n", OpenSSL_version(OPENSSL_VERSION));
    printf("%-26s %8s %10s %10s %8s\n", "record", "bytes", "put, ns", "get, ns", "GB/s");
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++)
        records(&aead_libcrypto, SEAL_AES_128_GCM, "AES-128-GCM", sizes[i]);
    for (unsigned i = 0; ipsec_mb && i < ARRAY_LEN(sizes); i++)
        records(ipsec_mb, SEAL_AES_128_GCM, "AES-128-GCM (libipsec-mb)", sizes[i]);
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++)
        records(&aead_libcrypto, SEAL_CHACHA20_POLY1305, "ChaCha20-Poly1305", sizes[i]);
    printf("\n%-26s %8s %10s %19s\n", "both sides on a core", "bytes", "ns each", "GB/s");
    stream(FABRIC_ENCRYPT_OFF, "in the clear");
    stream(FABRIC_ENCRYPT_ON, "encrypted");
    return 0;
}
