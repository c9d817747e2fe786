package gvelab

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/test/internal/guestops"
)

// Record is a message of the kernel's log.
type Record struct {
	Level int           `json:"level"` // 4 is a warning; lower levels are more severe
	Seq   uint64        `json:"seq"`
	At    time.Duration `json:"at"`
	Text  string        `json:"text"`
}

func (r Record) String() string {
	return fmt.Sprintf("<%d> [%.3f] %s", r.Level, r.At.Seconds(), r.Text)
}

// kernelLog reads all messages of /dev/kmsg (Documentation/ABI/testing/dev-kmsg). A lost message is an error.
func kernelLog() ([]Record, error) {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/kmsg", Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var rs []Record
	b := make([]byte, 16<<10)
	for {
		n, err := unix.Read(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if len(rs) == 0 || rs[0].Seq != 0 {
				return nil, errors.New("the kernel's log does not begin with its first message: log_buf_len is too small")
			}
			return rs, nil
		case err != nil:
			return nil, &os.PathError{Op: "read", Path: "/dev/kmsg", Err: err}
		}
		r, err := parseRecord(string(b[:n]))
		if err != nil {
			return nil, err
		}
		if k := len(rs); k > 0 && r.Seq != rs[k-1].Seq+1 {
			return nil, fmt.Errorf("messages %d to %d of the kernel's log are lost", rs[k-1].Seq+1, r.Seq-1)
		}
		rs = append(rs, r)
	}
}

// parseRecord reads "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT\n", and ignores the lines behind it.
func parseRecord(s string) (Record, error) {
	head, text, ok := strings.Cut(s, ";")
	f := strings.Split(head, ",")
	if !ok || len(f) < 3 {
		return Record{}, fmt.Errorf("not a record of the kernel's log: %q", s)
	}
	prio, err1 := strconv.Atoi(f[0])
	seq, err2 := strconv.ParseUint(f[1], 10, 64)
	us, err3 := strconv.ParseInt(f[2], 10, 64)
	text, _, _ = strings.Cut(text, "\n")
	return Record{Level: prio & 7, Seq: seq, At: time.Duration(us) * time.Microsecond, Text: text},
		errors.Join(err1, err2, err3)
}

// Splats returns the records of a log that match guestops.Splat.
func Splats(log []Record) (bad []Record) {
	for _, r := range log {
		if guestops.Splat.MatchString(r.Text) {
			bad = append(bad, r)
		}
	}
	return bad
}
