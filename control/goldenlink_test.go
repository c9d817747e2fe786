package control_test

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"vnic.dev/vnic/control"
)

// goldenSession stands in every golden frame in the place of the client's own, which is random.
var goldenSession = [4]byte{0x04, 0x03, 0x02, 0x01}

const sessionAt = control.EthernetLen + 4

// goldenLink joins a client and a dispatcher, in memory and at once, and writes down what it carries: frames toward
// the NIC after ">", and those toward the driver after "<".
type goldenLink struct {
	t      *testing.T
	d      *control.Dispatcher
	client *control.Client
	own    [4]byte // the client's session, once it has sent
	text   strings.Builder

	lose      func(n int, reply bool) bool // if set: whether the nth frame, from 0, is lost
	n         int
	change    func(frame []byte) []byte // if set, applied to replies
	changeAsk func(frame []byte) []byte // if set, applied to requests
	answered  func(reply []byte)        // if set, called with each reply
	quiet     bool                      // nothing is written down
}

func newGoldenLink(t *testing.T, h control.Handler, o control.ClientOptions) *goldenLink {
	o.MAC = [6]byte{2, 0, 0, 0, 0, 9}
	l := &goldenLink{t: t, d: control.NewDispatcher(h)}
	l.client = control.NewClient(l, o)
	t.Cleanup(l.client.Close)
	return l
}

// Send implements control.Sender.
func (l *goldenLink) Send(frame []byte) error {
	own := [4]byte(frame[sessionAt:])
	if own == [4]byte{} || l.own != [4]byte{} && own != l.own {
		l.t.Errorf("session %x after %x: not 0, and one for each client", own, l.own)
	}
	l.own = own
	frame = slices.Clone(frame)
	copy(frame[sessionAt:], goldenSession[:])
	if l.changeAsk != nil {
		frame = l.changeAsk(frame)
	}
	if reply := l.toNIC(frame); reply != nil {
		l.toDriver(reply)
	}
	return nil
}

// toNIC carries a frame to the NIC and returns the answer.
func (l *goldenLink) toNIC(frame []byte) []byte {
	if l.lost(false) {
		l.write("> (lost)", frame)
		return nil
	}
	l.write(">", frame)
	return l.d.Handle(frame, make([]byte, 0, control.MaxFrame))
}

// toDriver carries an answer, or a notify, to the driver.
func (l *goldenLink) toDriver(frame []byte) {
	if l.change != nil {
		frame = l.change(slices.Clone(frame))
	}
	if l.answered != nil {
		l.answered(frame)
	}
	if l.lost(true) {
		l.write("< (lost)", frame)
		return
	}
	l.write("<", frame)
	frame = slices.Clone(frame)
	if len(frame) >= sessionAt+4 && [4]byte(frame[sessionAt:]) == goldenSession {
		copy(frame[sessionAt:], l.own[:])
	}
	if !l.client.Receive(frame) {
		l.t.Errorf("the client does not know this frame: %x", frame)
	}
}

func (l *goldenLink) lost(reply bool) bool {
	l.n++
	return l.lose != nil && l.lose(l.n-1, reply)
}

// say writes a comment.
func (l *goldenLink) say(what string, args ...any) {
	if !l.quiet {
		fmt.Fprintf(&l.text, "\n# "+what+"\n", args...)
	}
}

const dumpWidth = 32 // bytes of data on a line

// write writes a frame: a line of its Ethernet header and control header, and its data on lines of its own. The text
// of a refusal is repeated in a comment.
func (l *goldenLink) write(dir string, frame []byte) {
	if l.quiet {
		return
	}
	b := &l.text
	if len(frame) < control.EthernetLen+control.HeaderLen {
		fmt.Fprintf(b, "%s %x\n", dir, frame)
		return
	}
	h := frame[control.EthernetLen:]
	fmt.Fprintf(b, "%s %x %x %x %x %x %x %x %x %x\n", dir, frame[:6], frame[6:12], frame[12:14],
		h[0:4], h[4:8], h[8:12], h[12:16], h[16:18], h[18:20])
	data := frame[control.EthernetLen+control.HeaderLen:]
	for line := range slices.Chunk(data, dumpWidth) {
		var words []string
		for w := range slices.Chunk(line, 4) {
			words = append(words, hex.EncodeToString(w))
		}
		fmt.Fprintf(b, "    %s\n", strings.Join(words, " "))
	}
	var f control.Frame
	if f.Parse(frame) == nil && f.Errno != 0 {
		fmt.Fprintf(b, "#   %d (%v): %q\n", uint16(f.Errno), f.Errno, f.Data)
	}
}

// goldenFrame is a frame read back from a golden file.
type goldenFrame struct {
	dir string // ">" or "<"
	control.Frame
}

// parseGolden reads the frames of a golden file back; those that are not frames of the protocol are left out.
func parseGolden(text string) ([]goldenFrame, error) {
	var all []goldenFrame
	var dir, digits string
	flush := func() error {
		b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			return err
		}
		f := goldenFrame{dir: dir}
		if dir != "" && f.Parse(b) == nil {
			all = append(all, f)
		}
		dir, digits = "", ""
		return nil
	}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, ">"), strings.HasPrefix(line, "<"):
			if err := flush(); err != nil {
				return nil, err
			}
			dir = line[:1]
			digits = strings.TrimPrefix(line[1:], " (lost)")
		case strings.HasPrefix(line, "    ") && dir != "":
			digits += line
		}
	}
	err := flush()
	return all, err
}

// goldenHandler answers with what the test has set, and keeps what it was asked.
type goldenHandler struct {
	generation uint32
	err        error // of the next call, and all later ones
	got        []any // the arguments of the last call
	calls      int

	info     control.Info
	split    control.Split
	id       uint32
	rules    []control.FlowRule
	rss      control.RSS
	gpus     []control.GPUInfo
	maps     []control.GPUMap
	buffers  []control.Buffer
	bindings []control.Binding
	counters control.MeterCounters
	port     control.PortCounters
	job      uint64
	status   control.JobStatus
}

func (h *goldenHandler) called(args ...any) { h.got, h.calls = args, h.calls+1 }

func (h *goldenHandler) Generation() uint32 { return h.generation }
func (h *goldenHandler) Info() (control.Info, error) {
	h.called()
	return h.info, h.err
}

func (h *goldenHandler) SetSplit(s control.Split) error {
	h.called(s)
	return h.err
}

func (h *goldenHandler) Split(queue uint16) (control.Split, error) {
	h.called(queue)
	return h.split, h.err
}

func (h *goldenHandler) AddFlow(r control.FlowRule) (uint32, error) {
	h.called(r)
	return h.id, h.err
}

func (h *goldenHandler) DelFlow(id uint32) error {
	h.called(id)
	return h.err
}

func (h *goldenHandler) Flows() ([]control.FlowRule, error) {
	h.called()
	return h.rules, h.err
}

func (h *goldenHandler) SetRSS(r control.RSS) error {
	h.called(r)
	return h.err
}

func (h *goldenHandler) RSS() (control.RSS, error) {
	h.called()
	return h.rss, h.err
}

func (h *goldenHandler) GPUs() ([]control.GPUInfo, error) {
	h.called()
	return h.gpus, h.err
}

func (h *goldenHandler) GPUMaps() ([]control.GPUMap, error) {
	h.called()
	return h.maps, h.err
}

func (h *goldenHandler) RegisterBuffer(b control.Buffer) (uint32, error) {
	h.called(b)
	return h.id, h.err
}

func (h *goldenHandler) UnregisterBuffer(id uint32) error {
	h.called(id)
	return h.err
}

func (h *goldenHandler) Buffers() ([]control.Buffer, error) {
	h.called()
	return h.buffers, h.err
}

func (h *goldenHandler) BindRx(buffer uint32, queues []uint16) (uint32, error) {
	h.called(buffer, queues)
	return h.id, h.err
}

func (h *goldenHandler) BindTx(buffer uint32) (uint32, error) {
	h.called(buffer)
	return h.id, h.err
}

func (h *goldenHandler) Unbind(id uint32) error {
	h.called(id)
	return h.err
}

func (h *goldenHandler) Bindings() ([]control.Binding, error) {
	h.called()
	return h.bindings, h.err
}

func (h *goldenHandler) AddMeter(m control.Meter) (uint32, error) {
	h.called(m)
	return h.id, h.err
}

func (h *goldenHandler) ReadMeter(id uint32) (control.MeterCounters, error) {
	h.called(id)
	return h.counters, h.err
}

func (h *goldenHandler) DelMeter(id uint32) error {
	h.called(id)
	return h.err
}

func (h *goldenHandler) PortCounters() (control.PortCounters, error) {
	h.called()
	return h.port, h.err
}

func (h *goldenHandler) SubmitJob(j control.Job) (uint64, error) {
	h.called(j)
	return h.job, h.err
}

func (h *goldenHandler) PollJob(id uint64) (control.JobStatus, error) {
	h.called(id)
	return h.status, h.err
}

func (h *goldenHandler) CancelJob(id uint64) (control.JobStatus, error) {
	h.called(id)
	return h.status, h.err
}

// refusals are the errors that the commands' replies carry in the golden files: each with its number and words.
func refusal(errno syscall.Errno, words string) error {
	return fmt.Errorf("%s: %w", words, errno)
}
