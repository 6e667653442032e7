/* The cache of unpacked and converted data files.
 *
 * A file that cannot be mapped as it is (`.gz`, CSV, text that becomes tokens) is rewritten once, under a temporary name, and
 * renamed when it is whole; so a name in the cache always stands for complete contents. Its name
 * holds a hash of the original's real path, size and time of change: an altered original gets
 * another cache file. */
#include "data_format.h"

#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static uint64_t hash_bytes(uint64_t h, const void *p, size_t n)
{
	const unsigned char *b = p;
	for (size_t i = 0; i < n; i++)
		h = (h ^ b[i]) * 0x100000001b3u;
	return h;
}

/* A directory of ours alone: others must not be able to put data in our way. */
static bool usable_directory(const char *path)
{
	struct stat st;
	if (mkdir(path, 0700) && errno != EEXIST)
		return false;
	return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == geteuid() &&
	       access(path, W_OK) == 0;
}

static bool cache_directory(char *out, size_t size)
{
	const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
	if (xdg && xdg[0] == '/') {
		snprintf(out, size, "%s", xdg);
		mkdir(out, 0700);
		snprintf(out, size, "%s/dlc", xdg);
		if (usable_directory(out))
			return true;
	}
	if (home && home[0] == '/') {
		snprintf(out, size, "%s/.cache", home);
		mkdir(out, 0700);
		snprintf(out, size, "%s/.cache/dlc", home);
		if (usable_directory(out))
			return true;
	}
	snprintf(out, size, "/tmp/dlc-%u", (unsigned)geteuid());
	return usable_directory(out);
}

bool cache_gunzip(const char *path, int fd, void *ctx, Fail *f)
{
	(void)ctx;
	gzFile in = gzopen(path, "rb");
	if (!in)
		return fail(f, EXIT_FILES, "%s: %s", path, strerror(errno));
	gzbuffer(in, 1 << 17);
	static const size_t chunk = 1 << 17;
	char *buffer = malloc(chunk);
	bool ok = buffer != NULL;
	if (!ok)
		fail(f, EXIT_FILES, "out of memory");
	while (ok) {
		int n = gzread(in, buffer, (unsigned)chunk);
		int code = Z_OK;
		const char *what = gzerror(in, &code);
		if (n < 0 || (n == 0 && code != Z_OK)) {
			ok = fail(f, EXIT_INPUT, "%s: the gzip data are damaged or cut off (%s)",
				  path, code == Z_BUF_ERROR ? "unexpected end of file" : what);
			break;
		}
		if (n == 0)
			break;
		if (!write_all(fd, buffer, (size_t)n))
			ok = fail(f, EXIT_FILES, "cannot unpack %s into the cache: %s", path,
				  strerror(errno));
	}
	free(buffer);
	gzclose(in);
	return ok;
}

bool cache_file(const char *path, const char *kind, CacheMake make, void *ctx, char *out, size_t out_size,
		Fail *f)
{
	char real[PATH_MAX], dir[PATH_MAX], temp[PATH_MAX];
	struct stat st;
	if (!realpath(path, real) || stat(real, &st))
		return fail(f, EXIT_FILES, "%s: %s", path, strerror(errno));
	if (!data_is_file(path, &st, f))
		return false;
	uint64_t h = hash_bytes(0xcbf29ce484222325u, real, strlen(real));
	h = hash_bytes(h, kind, strlen(kind));
	h = hash_bytes(h, &st.st_size, sizeof st.st_size);
	h = hash_bytes(h, &st.st_mtim.tv_sec, sizeof st.st_mtim.tv_sec);
	h = hash_bytes(h, &st.st_mtim.tv_nsec, sizeof st.st_mtim.tv_nsec);
	if (!cache_directory(dir, sizeof dir - 300))
		return fail(
			f, EXIT_FILES,
			"%s has to be unpacked once, but no cache folder can be written (XDG_CACHE_HOME, ~/.cache, /tmp)",
			path);
	const char *base = strrchr(real, '/') + 1;
	if (snprintf(out, out_size, "%s/%.80s-%016llx.%s", dir, base, (unsigned long long)h,
		     kind) >= (int)out_size ||
	    snprintf(temp, sizeof temp, "%s.%ld", out, (long)getpid()) >= (int)sizeof temp)
		return fail(f, EXIT_FILES, "%s: the cache's path is too long", path);
	if (access(out, R_OK) == 0)
		return true;
	int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return fail(f, EXIT_FILES, "cannot write the cache file %s: %s", temp,
			    strerror(errno));
	bool ok = make(path, fd, ctx, f);
	if (close(fd) && ok)
		ok = fail(f, EXIT_FILES, "cannot write the cache file %s: %s", temp,
			  strerror(errno));
	if (ok && rename(temp, out))
		ok = fail(f, EXIT_FILES, "cannot rename the cache file %s: %s", temp,
			  strerror(errno));
	if (!ok)
		unlink(temp);
	return ok;
}
