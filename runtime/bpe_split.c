/* Words of a text, as GPT-2's published pattern cuts them:
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * by hand, over UTF-8: a contraction; letters, numbers or other characters, each with one blank before them; white space without its
 * last character where a word follows; white space. Classes are those of Unicode 14. A byte that belongs to no whole UTF-8
 * character is an other character by itself. */
#include "bpe.h"

#include "unicode_classes.h"

#include <string.h>

typedef enum CharClass { C_SPACE, C_LETTER, C_NUMBER, C_OTHER } CharClass;

static bool in_ranges(const Range *r, size_t n, uint32_t c)
{
	size_t low = 0;
	while (low < n) {
		size_t mid = low + (n - low) / 2;
		if (r[mid].last < c)
			low = mid + 1;
		else
			n = mid;
	}
	return r[low].first <= c && c <= r[low].last;
}

static CharClass class_of(uint32_t c)
{
	if (c < 0x80)
		return (c | 32) >= 'a' && (c | 32) <= 'z' ? C_LETTER
		       : c >= '0' && c <= '9'            ? C_NUMBER
		       : c == ' ' || (c >= 9 && c <= 13) ? C_SPACE
							 : C_OTHER;
	if (c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
	    c == 0x202F || c == 0x205F || c == 0x3000)
		return C_SPACE;
	if (c <= letters[sizeof letters / sizeof *letters - 1].last && in_ranges(letters, sizeof letters / sizeof *letters, c))
		return C_LETTER;
	if (c <= numbers[sizeof numbers / sizeof *numbers - 1].last && in_ranges(numbers, sizeof numbers / sizeof *numbers, c))
		return C_NUMBER;
	return C_OTHER;
}

/* The class of the first character, and its bytes in *len. */
static CharClass next_class(const unsigned char *p, size_t n, size_t *len)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	*len = 1;
	if (p[0] < 0x80)
		return class_of(p[0]);
	size_t want = p[0] >= 0xF5 ? 0 : p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : p[0] >= 0xC2 ? 2 : 0;
	if (want == 0 || want > n)
		return C_OTHER;
	uint32_t c = p[0] & (0x7Fu >> want);
	for (size_t i = 1; i < want; i++) {
		if ((p[i] & 0xC0) != 0x80)
			return C_OTHER;
		c = c << 6 | (p[i] & 0x3Fu);
	}
	if (c < least[want] || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF))
		return C_OTHER;
	*len = want;
	return class_of(c);
}

/* Bytes of the characters of class `of` at the start; *last: of the last one. */
static size_t run_of(const unsigned char *p, size_t n, CharClass of, size_t *last)
{
	size_t at = 0, len;
	while (at < n && next_class(p + at, n - at, &len) == of) {
		at += len;
		*last = len;
	}
	return at;
}

static size_t contraction(const unsigned char *p, size_t n)
{
	static const char *const ends[] = { "s", "t", "re", "ve", "m", "ll", "d" };
	for (size_t i = 0; i < sizeof ends / sizeof *ends && p[0] == '\''; i++) {
		size_t len = strlen(ends[i]);
		if (n > len && !memcmp(p + 1, ends[i], len))
			return len + 1;
	}
	return 0;
}

size_t bpe_word(const unsigned char *text, size_t n)
{
	size_t len, last = 0, blank = text[0] == ' ' && n > 1;
	size_t end = contraction(text, n);
	if (end)
		return end;
	CharClass class = next_class(text + blank, n - blank, &len);
	if (class != C_SPACE)
		return blank + run_of(text + blank, n - blank, class, &last);
	end = run_of(text, n, C_SPACE, &last);
	return end < n && end > last ? end - last : end;
}
