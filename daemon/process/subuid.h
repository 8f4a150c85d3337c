/* subuid.h - /etc/subuid: whose the uids are that people have beside their own. */
#ifndef COMMD_SUBUID_H
#define COMMD_SUBUID_H

#include "shm/util/payers.h"

enum { SUBUID_MAX = 65536, SUBUID_MAX_BYTES = 8 << 20 };

/* What is wrong with a file, for the log. */
struct subuid_report {
    int error;          /* negative errno: it cannot be read */
    unsigned refused;   /* lines that are none, or beyond SUBUID_MAX */
    unsigned line;      /* the first of them */
    unsigned strangers; /* lines of a name that nobody has */
    unsigned overlaps;  /* lines that name uids of others, too */
};

/* The uid of a name; false: nobody has it. */
typedef bool subuid_name_fn(void *arg, const char *name, uint32_t *ret_uid);

/* NULL: no memory. Uid @own, that commd runs as, and root are charged for nobody. */
struct payers *subuid_parse(const char *text, size_t len, uint32_t own, subuid_name_fn *uid_of,
                            void *arg, struct subuid_report *ret_report);
/* From @path, and names from the system, which may take long. NULL: no memory, or an error. */
struct payers *subuid_load(const char *path, uint32_t own, struct subuid_report *ret_report);

/* The same in a thread. NULL: there is none. */
struct subuid *subuid_begin(const char *path, uint32_t own);
/* False: it is not done. Else *@subuid is gone, and *ret_payers the caller's. */
bool subuid_take(struct subuid **subuid, struct payers **ret_payers,
                 struct subuid_report *ret_report);
/* It is not waited for. */
struct subuid *subuid_free(struct subuid *subuid);

#endif
