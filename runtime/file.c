/* Writing to files; see file.h. */
#include "file.h"

#include <errno.h>
#include <unistd.h>

bool write_all(int fd, const void *p, size_t n)
{
	const char *at = p;
	while (n > 0) {
		ssize_t w = write(fd, at, n);
		if (w < 0 && errno == EINTR)
			continue;
		if (w <= 0) {
			if (w == 0)
				errno = ENOSPC;
			return false;
		}
		at += w;
		n -= (size_t)w;
	}
	return true;
}
