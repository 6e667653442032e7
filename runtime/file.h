/* Writing to files. */
#ifndef DLC_RUNTIME_FILE_H
#define DLC_RUNTIME_FILE_H

#include <stdbool.h>
#include <stddef.h>

/* Writes all of it, however often the system takes less; false with errno set. */
bool write_all(int fd, const void *p, size_t n);

#endif
