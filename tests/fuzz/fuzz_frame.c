/* fuzz_frame.c - any bytes as a frame: the header check, the decoder, and what they let through.
 *
 * What decodes must encode, and the result must decode to the same message and encode to the
 * same bytes: so no field can be accepted that we would not send ourselves, and nothing is lost
 * between the two directions. An input has its format as tests/lib/frames.h says. */
#include <stdio.h>

#include "tests/lib/frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "fuzz_frame: %s\n", what);
        abort();
    }
}

static void check_twice(struct msg *msg)
{
    void *once = NULL, *twice = NULL;
    size_t len1, len2, need;
    struct msg again;

    must(codec_encode(msg, &once, &len1) == 0, "decoded, but does not encode");
    must(codec_frame_check(once, len1, CODEC_MAX_FRAME, &need) == CODEC_OK && need == len1,
         "our own frame is not whole");
    must(codec_decode(once, len1, &again) == CODEC_OK, "our own frame does not decode");
    must(again.type == msg->type, "another kind");
    must(codec_encode(&again, &twice, &len2) == 0, "does not encode again");
    must(len1 == len2 && !memcmp(once, twice, len1), "another message");
    msg_fini(&again);
    free(once);
    free(twice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *frame = frame_bytes(data, size);
    struct msg msg;
    size_t need = 0;
    int r = codec_frame_check(frame, size, CODEC_MAX_CLIENT_FRAME, &need);

    if (r == CODEC_E_MORE)
        must(need > size && need <= CODEC_MAX_CLIENT_FRAME + CODEC_HEADER, "bad need");
    must(r != CODEC_OK || (need >= CODEC_HEADER && need <= size), "whole, but longer");
    if (r == CODEC_OK && codec_decode(frame, need, &msg) == CODEC_OK) {
        check_twice(&msg);
        msg_fini(&msg);
    }
    free(frame);
    return 0;
}
