package transfer

import (
	"context"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

var complaint = regexp.MustCompile(`WARNING:|BUG:|\bOops\b|cut here|Call Trace|Kernel panic|general protection|` +
	`refcount_t:|use-after-free|blocked for more than|hung task|Unrecoverable platform error|Bad page`)

// Complaints returns the lines in the last MiB of this machine's kernel log that match complaint: signs of an error of
// the kernel or of broken memory.
func (n *Node) Complaints(context.Context) (lines []string, err error) {
	b := make([]byte, 1<<20)
	k, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, b)
	if err != nil {
		return nil, err
	}
	return complaints(string(b[:k])), nil
}

func complaints(log string) (lines []string) {
	for line := range strings.Lines(log) {
		if complaint.MatchString(line) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
