/* files.h - pid files. */
#ifndef COMMD_FILES_H
#define COMMD_FILES_H

#include <sys/types.h>

#include "shm/util/base.h"

/* Does nothing when @path is "". A failure is logged: nothing depends on a pid file. */
void file_write_pid(const char *path, pid_t pid);
void file_remove_pid(const char *path);

#endif
