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

// peer is the vnic on the host that runs the other guest, at the end of a connection. Both send events (package
// jsonlines): first a hello each; then the steps of the transfer, so that both go on together, and meanwhile signs of
// life; at the end a verdict each, and an acknowledgement. A host that ends earlier sends the reason. The peer's
// messages are bounded, and their text is made printable.
type peer struct {
	*jsonlines.Client
	conn    halfCloser
	guest   string        // the other host's
	silence time.Duration // without a word, after which it is gone
	work    sync.WaitGroup
	stop    chan struct{} // closed: nothing is to be said that nobody asked for
	over    *atomic.Bool  // all has been said and heard: how it ends means nothing any more

	mu       sync.Mutex
	received map[string]json.RawMessage // under mu: by event and step, messages that are not consumed yet
	news     chan struct{}              // under mu: closed, and replaced, when a message is added to received
}

// halfCloser is a connection of either network stack.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// hello is what both have to agree on.
type hello struct {
	Guest    string      `json:"guest"`
	Settings [][2]string `json:"settings"` // as flags say them
	Lab      string      `json:"lab"`      // the file, completed, without uplinks
}

// verdict is what a host says of its own side.
type verdict struct {
	OK   bool   `json:"ok"`
	Text string `json:"text,omitempty"` // why not
}

// Events.
const (
	sayHello   = "hello"   // a hello
	sayAlive   = "alive"   // nothing
	sayStep    = "step"    // what there is to say there; op is the step
	sayVerdict = "verdict" // a verdict
	sayHeard   = "heard"   // true
	sayEnd     = "end"     // why
)

const (
	protocol   = 2       // that of 780d5150 is 1
	maxMessage = 4 << 20 // bytes: a completed lab file is some 100 KiB at most
	maxSteps   = 4 * MaxRails
	maxText    = 500 // bytes of what is printed
	timeWait   = 250 * time.Millisecond
)

// patient is a connection whose reads fail after silence.
type patient struct {
	halfCloser
	silence time.Duration
}

func (p patient) Read(b []byte) (int, error) {
	_ = p.SetReadDeadline(time.Now().Add(p.silence))
	return p.halfCloser.Read(b)
}

// newPeer begins to talk. guest is the one that is expected there; conn is the peer's to close.
func newPeer(conn halfCloser, guest string, silence time.Duration, over *atomic.Bool) *peer {
	p := makePeer(conn, guest, silence, over)
	p.Client = jsonlines.NewClient(patient{conn, silence},
		jsonlines.Options{Protocol: p.protocol(), MaxRequest: maxMessage,
			Strict: true, Event: p.hear, Closed: p.broken})
	p.work.Go(p.live)
	return p
}

// makePeer makes one that says and hears nothing yet.
func makePeer(conn halfCloser, guest string, silence time.Duration, over *atomic.Bool) *peer {
	return &peer{conn: conn, guest: guest, silence: silence, over: over, stop: make(chan struct{}),
		received: make(map[string]json.RawMessage), news: make(chan struct{})}
}

func (p *peer) protocol() jsonlines.Protocol {
	return jsonlines.Protocol{Version: protocol, MaxLine: maxMessage, Who: p.host(),
		Fix: "run the same vnic on both hosts"}
}

// host is the other one, in messages.
func (p *peer) host() string { return "the host of guest " + p.guest }

// watch has f told why the peer is gone, if that is before the end.
func (p *peer) watch(f func(error)) {
	p.work.Go(func() {
		if <-p.Done(); !p.over.Load() {
			f(p.Err())
		}
	})
}

// beat is how often we say that we are alive. The other host may be a faster one, which waits by its own limits.
func (p *peer) beat() time.Duration { return min(p.silence, time.Duration(limits.Stall)/3) / 10 }

// live says that we are alive.
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

// say says something. An error is one of a peer that is gone.
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

// broken says what an error of the connection means.
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

// hear takes a message. An error ends the conversation.
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

// exchange sends an event and waits for the peer's event of the same name and step, also if that was its last message.
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

// greet exchanges hellos.
func (p *peer) greet(ctx context.Context, ours hello) (theirs hello, err error) {
	err = p.exchange(ctx, sayHello, "", ours, &theirs)
	return theirs, err
}

// meet waits until the peer is at a step, too, and gives what it has to say there.
func (p *peer) meet(ctx context.Context, step, ours string) (theirs string, err error) {
	err = p.exchange(ctx, sayStep, step, ours, &theirs)
	return theirs, err
}

// conclude exchanges verdicts. Without an error each has heard the other's.
func (p *peer) conclude(ctx context.Context, ours verdict) (theirs verdict, err error) {
	if err = p.exchange(ctx, sayVerdict, "", ours, &theirs); err == nil {
		err = p.exchange(ctx, sayHeard, "", true, new(bool))
	}
	theirs.Text = printable(theirs.Text)
	return theirs, err
}

// close says why we end, if we do so before the end, and waits for the peer to hang up, too, so that all that was said
// has arrived. As TCP does (TIME-WAIT) it stays a moment longer, for the peer to hear that we have heard that.
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

// reason is an error in one line.
func reason(err error) string {
	return printable(strings.TrimPrefix(strings.ReplaceAll(err.Error(), ":\n", ": "), ErrProof.Error()+": "))
}

// printable is a text in one line that a terminal may be shown.
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

// differs says what two hosts that are to run halves of one transfer do not agree on.
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

// firstDifference gives the first lines of two texts that are not the same.
func firstDifference(a, b string) (x, y string) {
	s, t := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range max(len(s), len(t)) {
		x, y = "", ""
		if i < len(s) {
			x = strings.TrimSpace(s[i])
		}
		if i < len(t) {
			y = strings.TrimSpace(t[i])
		}
		if x != y {
			break
		}
	}
	return x, y
}
