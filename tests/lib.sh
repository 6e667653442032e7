# Shared by the test scripts (POSIX sh). Sourced from the root of the checkout with $name set to the script's name.
#
#   ok WHAT / bad WHAT WHY          one result
#   check WHAT COMMAND..            passes where the command ends with 0; its output ($tmp/checked) is shown where not
#   expect WHAT GOT OP WANT         numbers; OP is one of == != <= >= < >
#   close WHAT GOT WANT REL         |got - want| <= rel * |want|
#   json KEY FILE                   the number or text of a key in a file of JSON (first occurrence)
#   all_parts SCRIPT PART..         see below
#   finish                          prints `N passed, N failed`, exits
#
# Everything is written below $tmp, which goes away at the end unless KEEP=1.
B=${B:-build}
DLC=${DLC:-$B/dlc}
TENSORS=${TENSORS:-$B/tests/tensors}
passed=0
failed=0
tmp=$(mktemp -d)
root=$PWD
[ "${KEEP:-0}" = 1 ] || trap 'rm -rf "$tmp"' EXIT
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
export DLC_PROFILE= # no calibrated machine: the same plans everywhere

ok() { passed=$((passed + 1)); }
bad() {
	failed=$((failed + 1))
	echo "FAIL $1: $2"
}
check() {
	what=$1
	shift
	if "$@" > "$tmp/checked" 2>&1; then
		ok
	else
		bad "$what" "exit $? of: $*"
		tail -n 12 "$tmp/checked" | sed 's/^/    /'
		return 1
	fi
}
expect() {
	if awk "BEGIN { exit !(($2) $3 ($4)) }" 2> /dev/null; then
		ok
	else
		bad "$1" "expected $3 $4, found ${2:-nothing}"
		return 1
	fi
}
close() {
	if awk "BEGIN { d = ($2) - ($3); w = ($3); if (d < 0) d = -d; if (w < 0) w = -w; exit !(d <= $4 * w) }" 2> /dev/null; then
		ok
	else
		bad "$1" "expected $3 to $4 relative, found ${2:-nothing}"
		return 1
	fi
}
json() {
	tr ',{}' '\n\n\n' < "$2" | sed -n "s/^[ \t]*\"$1\"[ \t]*:[ \t]*\"\{0,1\}\([^\"]*\).*/\1/p" | sed 's/[ \t]*$//' | head -n 1
}
# column KEY FILE: one number a line of JSONL
column() {
	sed -n "s/.*\"$1\"[ ]*:[ ]*\([-+.0-9a-zA-Z]*\).*/\1/p" "$2"
}
# same_losses WHAT FILE FILE REL: the losses of two metrics files, line by line
same_losses() {
	column loss "$2" > "$tmp/loss.got"
	column loss "$3" > "$tmp/loss.want"
	if why=$(paste "$tmp/loss.got" "$tmp/loss.want" | awk -v rel="$4" '
		NF < 2 { print "line " NR ": one of the losses is missing"; bad = 1; exit }
		{ d = $1 - $2; w = $2; if (d < 0) d = -d; if (w < 0) w = -w
		  if (!(d <= rel * w)) { print "loss of step " NR ": expected " $2 " to " rel ", found " $1; bad = 1; exit } }
		END { if (!bad && NR == 0) print "no losses" ; exit bad || NR == 0 }'); then
		ok
	else
		bad "$1" "$why"
		return 1
	fi
}
finish() {
	echo "$passed passed, $failed failed"
	[ "$failed" -eq 0 ]
	exit
}
# all_parts SCRIPT PART..: runs `SCRIPT PART` for each part, two at a time, shows what they say and adds up their counts
all_parts() {
	script=$1
	shift
	printf '%s\n' "$@" | xargs -P 2 -I{} sh -c '"$1" "$2" > "$3/part.$2" 2>&1 || :' sh "$script" {} "$tmp"
	for part in "$@"; do
		sum=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$tmp/part.$part" | tail -n 1)
		grep -v -E '^[0-9]+ passed, [0-9]+ failed$' "$tmp/part.$part"
		if [ -z "$sum" ]; then
			bad "$part" "ended without a result"
			continue
		fi
		passed=$((passed + ${sum%% passed*}))
		sum=${sum#*passed, }
		failed=$((failed + ${sum%% failed*}))
	done
}
# a real text where there is one, else our own sources
text_file() {
	if [ ! -f "$B/tests/text.txt" ]; then
		if command -v bible > /dev/null 2>&1; then
			bible -f 'gen1:1-rev22:21' > "$B/tests/text.part" < /dev/null
		else
			cat ir/*.[ch] frontend/*.[chly] passes/*.[ch] codegen/*.[ch] runtime/*.[ch] > "$B/tests/text.part"
		fi
		mv "$B/tests/text.part" "$B/tests/text.txt"
	fi
	echo "$B/tests/text.txt"
}
# data_of MODEL: the arguments that its trainer needs besides its defaults; small test splits, since a run ends with an
# evaluation
data_of() {
	case $1 in
	gpt-char) echo "--data text=$(text_file) --data text.validation=0.001" ;;
	*) echo "--data images.test_x=tests/oracle/fixtures/images --data images.test_y=tests/oracle/fixtures/labels" ;;
	esac
}
