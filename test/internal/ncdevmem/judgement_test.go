package ncdevmem

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/test/internal/guestops"
)

type judge struct {
	out    io.Writer
	what   string
	failed int
}

func (j *judge) begin(what string) {
	j.what = what
	fmt.Fprintln(j.out, "==", what)
}

func (j *judge) check(ok bool, format string, args ...any) {
	mark := "ok  "
	if !ok {
		mark = "FAIL"
		j.failed++
	}
	fmt.Fprintln(j.out, mark, fmt.Sprintf(format, args...))
}

// words prints the end of a guest's output: at most the given number of lines.
func (j *judge) words(text string, lines int) {
	all := strings.Split(strings.TrimSpace(text), "\n")
	for _, line := range all[max(0, len(all)-lines):] {
		fmt.Fprintln(j.out, "    ", agent.Plain(line))
	}
}

// some returns a colon and up to three of the lines, quoted, or "" if there are none.
func some(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return fmt.Sprintf(": %q", lines[:min(3, len(lines))])
}

// reception has what ncdevmem, as a receiver, wrote to its standard error.
type reception struct {
	total   uint64          // the last total_received
	bytes   uint64          // bytes of all frags in dma-bufs
	frags   int             // number of frags in dma-bufs
	linear  int             // number of frags in host memory
	dmabufs map[string]bool // IDs of the dma-bufs of frags
	bound   string          // ID of the dma-buf that ncdevmem bound last
	ended   bool            // ncdevmem has received the end of the stream
	wrong   []string        // lines with complaints
}

// parseReception skips lines that it does not know, except lines for which complaint is true.
func parseReception(text string) (r reception) {
	r.dmabufs = map[string]bool{}
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(line, "received frag_page="):
			f := fields(line)
			r.frags++
			r.bytes += number(f["frag_size"])
			r.total = number(f["total_received"])
			r.dmabufs[f["dmabuf_id"]] = true
		case strings.HasPrefix(line, "total_received="):
			r.total = number(strings.TrimPrefix(line, "total_received="))
		case strings.HasPrefix(line, "got dmabuf id="):
			r.bound = strings.TrimPrefix(line, "got dmabuf id=")
		case strings.HasPrefix(line, "SCM_DEVMEM_LINEAR"):
			r.linear++
		case line == "ncdevmem: client exited":
			r.ended = true
		case complaint(line):
			r.wrong = append(r.wrong, line)
		}
	}
	return r
}

// transmission has the figures about sending in ncdevmem's standard error.
type transmission struct {
	calls, bytes uint64 // calls of sendmsg, and bytes sent by them
	completed    uint64 // calls whose completion ncdevmem has received
	ended        bool
	wrong        []string
}

func parseTransmission(text string) (t transmission) {
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(line, "sendmsg_ret="):
			t.calls++
			t.bytes += number(strings.TrimPrefix(line, "sendmsg_ret="))
		case strings.HasPrefix(line, "tx complete ["):
			lo, hi, _ := strings.Cut(strings.TrimSuffix(strings.TrimPrefix(line, "tx complete ["), "]"), ",")
			if number(hi) >= number(lo) {
				t.completed += number(hi) - number(lo) + 1
			}
		case line == "ncdevmem: tx ok":
			t.ended = true
		case complaint(line):
			t.wrong = append(t.wrong, line)
		}
	}
	return t
}

// fields returns the values of a line such as "received a=1, b=2" by their keys.
func fields(line string) map[string]string {
	m := map[string]string{}
	for part := range strings.SplitSeq(line, ", ") {
		part = part[strings.LastIndexByte(part, ' ')+1:]
		key, value, _ := strings.Cut(part, "=")
		m[key] = value
	}
	return m
}

func number(s string) uint64 {
	n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func complaint(line string) bool {
	line = strings.ToLower(line)
	for _, word := range []string{"fail", "error", "skip", "not enough", "recvmsg:", "did not", "invalid"} {
		if strings.Contains(line, word) {
			return true
		}
	}
	return false
}

func logTrouble(text string) (lines []string) {
	for line := range strings.SplitSeq(text, "\n") {
		if guestops.Splat.MatchString(line) {
			lines = append(lines, line)
		}
	}
	return lines
}
