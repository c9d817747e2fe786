package control

import (
	"encoding/hex"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/golden"
	"vnic.dev/vnic/internal/testkit"
)

var goldenSession = [4]byte{0x04, 0x03, 0x02, 0x01}

const sessionAt = EthernetLen + 4

// goldenLink joins a client and a dispatcher directly, and logs the frames: toward the NIC after ">", and
// toward the driver after "<". It replaces the client's random session by goldenSession on the way to the dispatcher.
type goldenLink struct {
	t       *testing.T
	d       *Dispatcher
	client  *Client
	session [4]byte
	text    strings.Builder

	lose      func(n int) bool // if set: reports whether the nth frame, from 0, is lost
	n         int
	change    func(frame []byte) []byte
	changeAsk func(frame []byte) []byte
}

func newGoldenLink(t *testing.T, h Handler, o ClientOptions) *goldenLink {
	o.MAC = driverMAC
	l := &goldenLink{t: t, d: NewDispatcher(h)}
	l.client = NewClient(l, o)
	t.Cleanup(l.client.Close)
	return l
}

func (l *goldenLink) Send(frame []byte) error {
	session := [4]byte(frame[sessionAt:])
	if session == [4]byte{} || l.session != [4]byte{} && session != l.session {
		l.t.Errorf("session %x after %x: not 0, and one for each client", session, l.session)
	}
	l.session = session
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

func (l *goldenLink) toNIC(frame []byte) []byte {
	if l.lost() {
		l.write("> (lost)", frame)
		return nil
	}
	l.write(">", frame)
	return l.d.Handle(frame, make([]byte, 0, MaxFrame))
}

func (l *goldenLink) toDriver(frame []byte) {
	if l.change != nil {
		frame = l.change(slices.Clone(frame))
	}
	if l.lost() {
		l.write("< (lost)", frame)
		return
	}
	l.write("<", frame)
	frame = slices.Clone(frame)
	if len(frame) >= sessionAt+4 && [4]byte(frame[sessionAt:]) == goldenSession {
		copy(frame[sessionAt:], l.session[:])
	}
	if !l.client.Receive(frame) {
		l.t.Errorf("the client does not know this frame: %x", frame)
	}
}

func (l *goldenLink) lost() bool {
	l.n++
	return l.lose != nil && l.lose(l.n-1)
}

func (l *goldenLink) say(what string, args ...any) {
	fmt.Fprintf(&l.text, "\n# "+what+"\n", args...)
}

const dumpWidth = 32 // bytes

// write logs a frame: a line with its headers, its data on separate lines, and a comment for an errno. A frame shorter
// than the headers is one line.
func (l *goldenLink) write(dir string, frame []byte) {
	b := &l.text
	if len(frame) < EthernetLen+HeaderLen {
		fmt.Fprintf(b, "%s %x\n", dir, frame)
		return
	}
	h := frame[EthernetLen:]
	fmt.Fprintf(b, "%s %x %x %x %x %x %x %x %x %x\n", dir, frame[:6], frame[6:12], frame[12:14],
		h[0:4], h[4:8], h[8:12], h[12:16], h[16:18], h[18:20])
	data := frame[EthernetLen+HeaderLen:]
	for line := range slices.Chunk(data, dumpWidth) {
		var words []string
		for w := range slices.Chunk(line, 4) {
			words = append(words, hex.EncodeToString(w))
		}
		fmt.Fprintf(b, "    %s\n", strings.Join(words, " "))
	}
	var f Frame
	if f.Parse(frame) == nil && f.Errno != 0 {
		fmt.Fprintf(b, "#   %d (%v): %q\n", uint16(f.Errno), f.Errno, f.Data)
	}
}

var goldenLines = regexp.MustCompile(`(?m)^[<>](?: \(lost\))? (.*\n(?:    .*\n)*)`)

func goldenFrames(t testing.TB) (frames [][]byte) {
	files, err := golden.Read(goldenDir)
	testkit.OK(t, err)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, m := range goldenLines.FindAllStringSubmatch(files[name], -1) {
			b, err := hex.DecodeString(strings.Join(strings.Fields(m[1]), ""))
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			frames = append(frames, b)
		}
	}
	return frames
}

type goldenHandler struct {
	generation uint32
	answer     any // of the next calls: a value, an error, or nil for the zero value
	got        []any
	calls      int
}

func reply[R any](h *goldenHandler, args ...any) (r R, err error) {
	h.got, h.calls = args, h.calls+1
	switch a := h.answer.(type) {
	case error:
		err = a
	case R:
		r = a
	}
	return r, err
}

func (h *goldenHandler) done(arg any) error {
	_, err := reply[none](h, arg)
	return err
}

func (h *goldenHandler) Generation() uint32                           { return h.generation }
func (h *goldenHandler) Info() (Info, error)                          { return reply[Info](h) }
func (h *goldenHandler) SetSplit(s Split) error                       { return h.done(s) }
func (h *goldenHandler) Split(queue uint16) (Split, error)            { return reply[Split](h, queue) }
func (h *goldenHandler) AddFlow(r FlowRule) (uint32, error)           { return reply[uint32](h, r) }
func (h *goldenHandler) DelFlow(id uint32) error                      { return h.done(id) }
func (h *goldenHandler) Flows() ([]FlowRule, error)                   { return reply[[]FlowRule](h) }
func (h *goldenHandler) SetRSS(r RSS) error                           { return h.done(r) }
func (h *goldenHandler) RSS() (RSS, error)                            { return reply[RSS](h) }
func (h *goldenHandler) GPUs() ([]GPUInfo, error)                     { return reply[[]GPUInfo](h) }
func (h *goldenHandler) GPUMaps() ([]GPUMap, error)                   { return reply[[]GPUMap](h) }
func (h *goldenHandler) RegisterBuffer(b Buffer) (uint32, error)      { return reply[uint32](h, b) }
func (h *goldenHandler) UnregisterBuffer(id uint32) error             { return h.done(id) }
func (h *goldenHandler) Buffers() ([]Buffer, error)                   { return reply[[]Buffer](h) }
func (h *goldenHandler) BindRx(b uint32, q []uint16) (uint32, error)  { return reply[uint32](h, b, q) }
func (h *goldenHandler) BindTx(buffer uint32) (uint32, error)         { return reply[uint32](h, buffer) }
func (h *goldenHandler) Unbind(id uint32) error                       { return h.done(id) }
func (h *goldenHandler) Bindings() ([]Binding, error)                 { return reply[[]Binding](h) }
func (h *goldenHandler) AddFlowCounter(m FlowCounter) (uint32, error) { return reply[uint32](h, m) }
func (h *goldenHandler) ReadFlowCounter(id uint32) (FlowCounts, error) {
	return reply[FlowCounts](h, id)
}
func (h *goldenHandler) DelFlowCounter(id uint32) error            { return h.done(id) }
func (h *goldenHandler) PortCounters() (PortCounters, error)       { return reply[PortCounters](h) }
func (h *goldenHandler) SubmitJob(j Job) (uint64, error)           { return reply[uint64](h, j) }
func (h *goldenHandler) PollJob(id uint64) (JobStatus, error)      { return reply[JobStatus](h, id) }
func (h *goldenHandler) CancelJob(id uint64) (JobStatus, error)    { return reply[JobStatus](h, id) }
func (h *goldenHandler) RDMALimits() (RDMALimits, error)           { return reply[RDMALimits](h) }
func (h *goldenHandler) AddPD() (uint32, error)                    { return reply[uint32](h) }
func (h *goldenHandler) DelPD(id uint32) error                     { return h.done(id) }
func (h *goldenHandler) AddMR(m MR) (uint32, error)                { return reply[uint32](h, m) }
func (h *goldenHandler) MoreMR(m MRMore) error                     { return h.done(m) }
func (h *goldenHandler) DelMR(key uint32) error                    { return h.done(key) }
func (h *goldenHandler) AddCQ(depth uint32) (uint32, error)        { return reply[uint32](h, depth) }
func (h *goldenHandler) DelCQ(id uint32) error                     { return h.done(id) }
func (h *goldenHandler) PollCQ(p Poll) (Completions, error)        { return reply[Completions](h, p) }
func (h *goldenHandler) AddQP(q QP) (uint32, error)                { return reply[uint32](h, q) }
func (h *goldenHandler) ConnectQP(p QPPath) error                  { return h.done(p) }
func (h *goldenHandler) DelQP(qpn uint32) error                    { return h.done(qpn) }
func (h *goldenHandler) QPStatus(qpn uint32) (QPStatus, error)     { return reply[QPStatus](h, qpn) }
func (h *goldenHandler) PostSend(p Post) error                     { return h.done(p) }
func (h *goldenHandler) PostRecv(p Post) error                     { return h.done(p) }
func (h *goldenHandler) RDMACounts() (RDMAPortCounts, error)       { return reply[RDMAPortCounts](h) }
func (h *goldenHandler) SetMailbox(m Mailbox) error                { return h.done(m) }
func (h *goldenHandler) PageRequests() ([]PageRequest, error)      { return reply[[]PageRequest](h) }
func (h *goldenHandler) AnswerPages(a PageAnswer) error            { return h.done(a) }
func (h *goldenHandler) PageCounts(key uint32) (PageCounts, error) { return reply[PageCounts](h, key) }
