/* codec_samples.h - a message of every kind, for test_codec and as seeds of fuzz_frame. */
#ifndef TESTS_CODEC_SAMPLES_H
#define TESTS_CODEC_SAMPLES_H

#include "shm/proto/codec.h"

/* SMALL: every field at its minimum. LARGE: every field at its maximum, lists of a few entries.
 * HUGE: lists at their maximum too (equal to LARGE for kinds without lists). */
enum sample { SAMPLE_SMALL, SAMPLE_LARGE, SAMPLE_HUGE, SAMPLE_COUNT };

enum { SAMPLE_TYPES = 63 }; /* kinds there are */

/* All of them, in ascending order. */
extern const enum msg_type sample_types[SAMPLE_TYPES];
/* Built with malloc; release with msg_fini(). */
void sample_make(enum msg_type type, enum sample sample, struct msg *ret_msg);
/* Field by field, lists and cells by content. */
bool sample_equal(const struct msg *a, const struct msg *b);
/* NULL, or the name of a struct with a field that the codec's lists do not have. */
const char *sample_unlisted_field(void);

#endif
