package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"vnic.dev/vnic/internal/jsonlines"
	"vnic.dev/vnic/internal/limits"
)

// peer is the connection to the vnic on the other host. Both send events (package jsonlines): first a hello,
// at each step of the transfer an event, for which the other waits, and at the end a verdict, which the other
// acknowledges; meanwhile signs of life. A host that ends earlier, with an error, sends the reason. Messages longer
// than maxMessage are refused, and unprintable characters in printed texts of the peer replaced.
type peer struct {
	*jsonlines.Client
	conn    halfCloser
	guest   string        // the guest on the other host
	silence time.Duration // how long the peer may send nothing, and how long say may take to send
	work    sync.WaitGroup
	stop    chan struct{} // closed by close; ends live
	over    *atomic.Bool  // set when the peer has our verdict, and by close: an end of the connection is no error then

	mu       sync.Mutex
	received map[string]json.RawMessage // under mu: by event and step, arguments that exchange has not read yet
	news     chan struct{}              // under mu: closed, and replaced, with each message that is added to received
}

// halfCloser is a TCP connection of vnic's network stack or of the kernel's.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// hello has the arguments of the hello that each host sends first. The hosts must have the same Settings and Lab, and
// different guests.
type hello struct {
	Guest    string      `json:"guest"`
	Settings [][2]string `json:"settings"` // flags and their values
	Lab      string      `json:"lab"`      // the lab file in YAML, with most defaults written out, without uplinks
}

// verdict is a host's result for its own end of the transfers.
type verdict struct {
	OK   bool   `json:"ok"`
	Text string `json:"text,omitempty"` // why OK is false
}

// Events, with their arguments.
const (
	sayHello   = "hello"   // a hello
	sayAlive   = "alive"   // nothing
	sayStep    = "step"    // a string of the step; op is the step's name
	sayVerdict = "verdict" // a verdict
	sayHeard   = "heard"   // true: the peer's verdict has arrived
	sayEnd     = "end"     // a string: the reason
)

const (
	protocol   = 2       // commit 780d5150 has version 1
	maxMessage = 4 << 20 // bytes
	maxSteps   = 4 * MaxRails
	maxText    = 500 // printable cuts a text after so many bytes
	timeWait   = 250 * time.Millisecond
)

// patient is a connection on which a read fails if no data comes for the time silence.
type patient struct {
	halfCloser
	silence time.Duration
}

func (p patient) Read(b []byte) (int, error) {
	_ = p.SetReadDeadline(time.Now().Add(p.silence))
	return p.halfCloser.Read(b)
}

// newPeer makes a peer for the host that should run guest, and starts to read conn and to send signs of life. The
// caller must call close, which closes conn.
func newPeer(conn halfCloser, guest string, silence time.Duration, over *atomic.Bool) *peer {
	p := makePeer(conn, guest, silence, over)
	p.Client = jsonlines.NewClient(patient{conn, silence},
		jsonlines.Options{Protocol: p.protocol(), MaxRequest: maxMessage,
			Strict: true, Event: p.hear, Closed: p.broken})
	p.work.Go(p.live)
	return p
}

// makePeer makes a peer without its Client, which would read conn, and without signs of life.
func makePeer(conn halfCloser, guest string, silence time.Duration, over *atomic.Bool) *peer {
	return &peer{conn: conn, guest: guest, silence: silence, over: over, stop: make(chan struct{}),
		received: make(map[string]json.RawMessage), news: make(chan struct{})}
}

func (p *peer) protocol() jsonlines.Protocol {
	return jsonlines.Protocol{Version: protocol, MaxLine: maxMessage, Who: p.host(),
		Fix: "run the same vnic on both hosts"}
}

func (p *peer) host() string { return "the host of guest " + p.guest }

// watch makes a goroutine call f with the reason if the connection ends before over is set.
func (p *peer) watch(f func(error)) {
	p.work.Go(func() {
		if <-p.Done(); !p.over.Load() {
			f(p.Err())
		}
	})
}

// beat returns the interval of our signs of life: a tenth of silence, but at most a thirtieth of limits.Stall, as the
// other host's silence may be shorter.
func (p *peer) beat() time.Duration { return min(p.silence, time.Duration(limits.Stall)/3) / 10 }

func (p *peer) live() {
	tick := time.NewTicker(p.beat())
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-p.Done():
			return
		case <-tick.C:
			_ = p.say(sayAlive, "", nil)
		}
	}
}

func (p *peer) say(event, step string, what any) error {
	b, err := json.Marshal(what)
	if err != nil {
		return err
	}
	m := &jsonlines.Message{Event: event, Op: step, Args: b}
	if event == sayHello {
		m.Say = sayHello // a vnic of protocol 1 takes this for a hello, and refuses its version
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.silence)
	defer cancel()
	if err := p.Send(ctx, m); err != nil {
		p.Fail(p.broken(err))
		return p.Err()
	}
	return nil
}

func (p *peer) broken(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("nothing has come from %s for %v: its vnic is gone, or the network between", p.host(), p.silence)
	case errors.Is(err, jsonlines.ErrTooLong):
		return fmt.Errorf("what says to be %s says more than %d bytes at once: it is no vnic", p.host(), maxMessage)
	case errors.Is(err, jsonlines.ErrNoMessage):
		return p.nonsense(err)
	case errors.Is(err, io.EOF):
		return fmt.Errorf("%s hung up before the end", p.host())
	}
	return fmt.Errorf("%s hung up before the end: %w", p.host(), err)
}

func (p *peer) nonsense(err error) error {
	return fmt.Errorf("what says to be %s makes no sense: %s", p.host(), printable(err.Error()))
}

// hear handles a message of the peer. Its error fails the Client: nothing more is read.
func (p *peer) hear(m *jsonlines.Message) error {
	switch m.Event {
	case sayAlive:
		return nil
	case sayEnd:
		var text string
		_ = json.Unmarshal(m.Args, &text)
		return fmt.Errorf("%s ended: %s", p.host(), printable(text))
	case sayHello, sayStep, sayVerdict, sayHeard:
	default:
		return p.nonsense(fmt.Errorf("%.20q, which nobody says", m.Event))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key := m.Event + " " + m.Op
	switch {
	case p.received[key] != nil:
		return p.nonsense(errors.New("it says something twice"))
	case m.Args == nil:
		return p.nonsense(fmt.Errorf("half a %s", m.Event))
	case len(p.received) == maxSteps:
		return p.nonsense(errors.New("it is far ahead"))
	}
	if m.Event == sayHeard {
		p.over.Store(true)
	}
	p.received[key] = m.Args
	close(p.news)
	p.news = make(chan struct{})
	return nil
}

// exchange sends an event with the arguments ours. If that succeeds, it waits for the peer's of the same name and step,
// whose arguments it stores in theirs; one that came before the connection or ctx ended still counts.
func (p *peer) exchange(ctx context.Context, event, step string, ours, theirs any) error {
	if err := p.say(event, step, ours); err != nil {
		return err
	}
	key := event + " " + step
	for end := error(nil); ; {
		p.mu.Lock()
		data, news := p.received[key], p.news
		delete(p.received, key)
		p.mu.Unlock()
		switch {
		case data != nil:
			if err := json.Unmarshal(data, theirs); err != nil {
				return p.nonsense(err)
			}
			return nil
		case end != nil:
			return end
		}
		select {
		case <-news:
		case <-p.Done():
			end = p.Err()
		case <-ctx.Done():
			end = context.Cause(ctx)
		}
	}
}

func (p *peer) greet(ctx context.Context, ours hello) (theirs hello, err error) {
	err = p.exchange(ctx, sayHello, "", ours, &theirs)
	return theirs, err
}

func (p *peer) meet(ctx context.Context, step, ours string) (theirs string, err error) {
	err = p.exchange(ctx, sayStep, step, ours, &theirs)
	return theirs, err
}

// conclude exchanges verdicts, and the acknowledgments of both. Without an error each host has the other's verdict.
func (p *peer) conclude(ctx context.Context, ours verdict) (theirs verdict, err error) {
	if err = p.exchange(ctx, sayVerdict, "", ours, &theirs); err == nil {
		err = p.exchange(ctx, sayHeard, "", true, new(bool))
	}
	theirs.Text = printable(theirs.Text)
	return theirs, err
}

// close sends why, unless it is nil, closes our direction of the connection, and waits a while until the peer closes
// its direction; then it closes conn. It waits for timeWait more, so that our stack can acknowledge the peer's FIN
// (TCP's TIME-WAIT). It must be called once only.
func (p *peer) close(why error) {
	close(p.stop)
	p.over.Store(true)
	if why != nil {
		_ = p.say(sayEnd, "", reason(why))
	}
	_ = p.conn.CloseWrite()
	select {
	case <-p.Done():
	case <-time.After(min(limits.OtherHost.Here(), p.silence)):
	}
	_ = p.Close()
	p.work.Wait()
	time.Sleep(timeWait)
}

// reason formats an error as one printable line, without ErrProof's text at its begin.
func reason(err error) string {
	return printable(strings.TrimPrefix(strings.ReplaceAll(err.Error(), ":\n", ": "), ErrProof.Error()+": "))
}

func printable(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "..."
	}
	s = strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\n", "; ")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// differs returns an error if both hosts run the same guest, or else for the first difference of their labs and
// settings. Without a difference it returns nil.
func (h *hello) differs(theirs *hello) error {
	if theirs.Guest == h.Guest {
		return fmt.Errorf("--guest %s: the other host runs guest %s, too", h.Guest, h.Guest)
	}
	if theirs.Lab != h.Lab {
		a, b := firstDifference(h.Lab, theirs.Lab)
		return fmt.Errorf("--lab: the other host's lab file is another one: %q here, %q there, as vnic lab show has them",
			printable(a), printable(b))
	}
	other := make(map[string]string)
	for _, s := range theirs.Settings {
		other[s[0]] = s[1]
	}
	for _, s := range h.Settings {
		if other[s[0]] != s[1] {
			return fmt.Errorf("%s is %s here, and %s on the other host: give both the same", s[0], s[1],
				printable(other[s[0]]))
		}
	}
	return nil
}

func firstDifference(a, b string) (x, y string) {
	for x == y && (a != "" || b != "") {
		x, a, _ = strings.Cut(a, "\n")
		y, b, _ = strings.Cut(b, "\n")
		x, y = strings.TrimSpace(x), strings.TrimSpace(y)
	}
	return x, y
}
