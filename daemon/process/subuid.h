/* subuid.h - /etc/subuid: the uids that people have beside their own, and to whom they belong. */
#ifndef COMMD_SUBUID_H
#define COMMD_SUBUID_H

#include "shm/util/payers.h"

enum { SUBUID_MAX = 65536, SUBUID_MAX_BYTES = 8 << 20 };

/* What is wrong with a file, for the log. */
struct subuid_report {
    int error;          /* negative errno: it cannot be read */
    unsigned refused;   /* lines that are malformed, or beyond SUBUID_MAX */
    unsigned line;      /* the number of the first refused line */
    unsigned strangers; /* lines with the name of no user */
    unsigned overlaps;  /* lines with uids that another line has, too */
};

/* The uid of user @name; false: there is no such user. */
typedef bool subuid_name_fn(void *arg, const char *name, uint32_t *ret_uid);

/* NULL: no memory. @own: the uid that commd runs as. Neither @own nor root is charged for another
 * uid. */
struct payers *subuid_parse(const char *text, size_t len, uint32_t own, subuid_name_fn *uid_of,
                            void *arg, struct subuid_report *ret_report);
/* Reads @path, and asks the system for names, which may take long. NULL: no memory, or an error. */
struct payers *subuid_load(const char *path, uint32_t own, struct subuid_report *ret_report);

/* The same in a thread. NULL: no thread could be made. */
struct subuid *subuid_begin(const char *path, uint32_t own);
/* False: the thread is not done. Else *@subuid is freed, and *ret_payers becomes the caller's. */
bool subuid_take(struct subuid **subuid, struct payers **ret_payers,
                 struct subuid_report *ret_report);
/* Does not wait for the thread. */
struct subuid *subuid_free(struct subuid *subuid);

#endif
