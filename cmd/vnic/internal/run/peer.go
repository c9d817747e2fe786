package run

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"vnic.dev/vnic/internal/limits"
)

// peer is the vnic on the host that runs the other guest, at the end of a connection. What is said are JSON objects,
// one a line: first a hello each; then where the transfer is, so that both go on together, and meanwhile that one is
// alive; at the end a verdict each, and that it was heard. Who ends before says why. What the peer says is bounded, and
// what of it is printed is printable.
type peer struct {
	conn    halfCloser
	guest   string        // the other host's
	silence time.Duration // without a word, after which it is gone
	work    sync.WaitGroup
	stop    chan struct{} // closed: nothing is to be said that nobody asked for
	over    *atomic.Bool  // all has been said and heard: how it ends means nothing any more

	lose sync.Once
	gone chan struct{} // closed: nothing comes any more
	err  error         // why; before gone

	writing sync.Mutex

	hello   chan hello
	verdict chan verdict
	heard   chan struct{}

	mu    sync.Mutex
	steps map[string]chan string // under mu: what it says where, which one of us reaches first
}

// halfCloser is a connection of either network stack.
type halfCloser interface {
	net.Conn
	CloseWrite() error
}

// hello is what both have to agree on.
type hello struct {
	Protocol int         `json:"protocol"`
	Guest    string      `json:"guest"`
	Settings [][2]string `json:"settings"` // as flags say them
	Lab      string      `json:"lab"`      // the file, completed, without uplinks
}

// verdict is what a host says of its own side.
type verdict struct {
	OK   bool   `json:"ok"`
	Text string `json:"text,omitempty"` // why not
}

// message is one of the protocol's.
type message struct {
	Say     string   `json:"say"`
	Hello   *hello   `json:"hello,omitempty"`
	Step    string   `json:"step,omitempty"`
	Data    string   `json:"data,omitempty"` // of a step
	Verdict *verdict `json:"verdict,omitempty"`
	Text    string   `json:"text,omitempty"` // of an end: why
}

// What is said.
const (
	sayHello   = "hello"
	sayAlive   = "alive"
	sayStep    = "step"
	sayVerdict = "verdict"
	sayHeard   = "heard"
	sayEnd     = "end"
)

const (
	protocol   = 1
	maxMessage = 4 << 20 // bytes: a completed lab file is some 100 KiB at most
	maxSteps   = 4 * MaxRails
	maxText    = 500 // bytes of what is printed
	timeWait   = 250 * time.Millisecond
)

// newPeer begins to talk. guest is the one that is expected there; conn is the peer's to close.
func newPeer(conn halfCloser, guest string, silence time.Duration, over *atomic.Bool) *peer {
	p := makePeer(conn, guest, silence, over)
	p.work.Go(p.read)
	p.work.Go(p.live)
	return p
}

// makePeer makes one that says and hears nothing yet.
func makePeer(conn halfCloser, guest string, silence time.Duration, over *atomic.Bool) *peer {
	return &peer{conn: conn, guest: guest, silence: silence, over: over, stop: make(chan struct{}),
		gone: make(chan struct{}), hello: make(chan hello, 1), verdict: make(chan verdict, 1),
		heard: make(chan struct{}, 1), steps: make(map[string]chan string)}
}

// host is the other one, in messages.
func (p *peer) host() string { return "the host of guest " + p.guest }

// lost says that nothing comes any more.
func (p *peer) lost(err error) {
	p.lose.Do(func() {
		p.err = err
		close(p.gone)
	})
}

// watch has f told why the peer is gone, if that is before the end.
func (p *peer) watch(f func(error)) {
	p.work.Go(func() {
		if <-p.gone; !p.over.Load() {
			f(p.err)
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
		case <-p.gone:
			return
		case <-tick.C:
			_ = p.say(message{Say: sayAlive})
		}
	}
}

// say says something. An error is one of a peer that is gone.
func (p *peer) say(m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	_ = p.conn.SetWriteDeadline(time.Now().Add(p.silence))
	if _, err := p.conn.Write(append(b, '\n')); err != nil {
		p.lost(p.broken(err))
		<-p.gone
		return p.err
	}
	return nil
}

// broken says what an error of the connection means.
func (p *peer) broken(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("nothing has come from %s for %v: its vnic is gone, or the network between", p.host(), p.silence)
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("what says to be %s says more than %d bytes at once: it is no vnic", p.host(), maxMessage)
	case err == nil:
		return fmt.Errorf("%s hung up before the end", p.host())
	}
	return fmt.Errorf("%s hung up before the end: %w", p.host(), err)
}

// read takes what the peer says, until it says no more.
func (p *peer) read() {
	lines := bufio.NewScanner(p.conn)
	lines.Buffer(nil, maxMessage)
	for {
		_ = p.conn.SetReadDeadline(time.Now().Add(p.silence))
		if !lines.Scan() {
			p.lost(p.broken(lines.Err()))
			return
		}
		if err := p.hear(lines.Bytes()); err != nil {
			p.lost(err)
			return
		}
	}
}

// hear takes a line. An error ends the conversation.
func (p *peer) hear(line []byte) error {
	var m message
	err := json.Unmarshal(line, &m)
	if err == nil {
		err = p.take(&m)
	}
	switch {
	case err != nil:
		return fmt.Errorf("what says to be %s makes no sense: %s", p.host(), printable(err.Error()))
	case m.Say == sayEnd:
		return fmt.Errorf("%s ended: %s", p.host(), printable(m.Text))
	}
	return nil
}

// take takes a message.
func (p *peer) take(m *message) error {
	switch {
	case m.Say == sayHello && m.Hello != nil:
		return offer(p.hello, *m.Hello)
	case m.Say == sayVerdict && m.Verdict != nil:
		m.Verdict.Text = printable(m.Verdict.Text)
		return offer(p.verdict, *m.Verdict)
	case m.Say == sayHeard:
		p.over.Store(true)
		return offer(p.heard, struct{}{})
	case m.Say == sayStep:
		c, err := p.step(m.Step)
		if err != nil {
			return err
		}
		return offer(c, m.Data)
	case m.Say == sayAlive, m.Say == sayEnd:
		return nil
	}
	return fmt.Errorf("%.20q, which nobody says", m.Say)
}

// offer puts what is said once where it is waited for.
func offer[T any](c chan T, v T) error {
	select {
	case c <- v:
		return nil
	default:
		return errors.New("it says something twice")
	}
}

// step is where the peer's word of a step goes.
func (p *peer) step(name string) (chan string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.steps[name]
	if c == nil {
		if len(p.steps) == maxSteps {
			return nil, errors.New("it is far ahead")
		}
		c = make(chan string, 1)
		p.steps[name] = c
	}
	return c, nil
}

// await waits for what the peer says, also if it was its last word.
func await[T any](ctx context.Context, p *peer, c <-chan T) (v T, err error) {
	select {
	case v = <-c:
		return v, nil
	case <-p.gone:
		err = p.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	select {
	case v = <-c:
		return v, nil
	default:
		return v, err
	}
}

// greet exchanges hellos.
func (p *peer) greet(ctx context.Context, ours hello) (theirs hello, err error) {
	if err := p.say(message{Say: sayHello, Hello: &ours}); err != nil {
		return theirs, err
	}
	return await(ctx, p, p.hello)
}

// meet waits until the peer is at a step, too, and gives what it has to say there.
func (p *peer) meet(ctx context.Context, step, ours string) (theirs string, err error) {
	c, err := p.step(step)
	if err != nil {
		return "", err
	}
	if err := p.say(message{Say: sayStep, Step: step, Data: ours}); err != nil {
		return "", err
	}
	theirs, err = await(ctx, p, c)
	p.mu.Lock()
	delete(p.steps, step)
	p.mu.Unlock()
	return theirs, err
}

// conclude exchanges verdicts. Without an error each has heard the other's.
func (p *peer) conclude(ctx context.Context, ours verdict) (theirs verdict, err error) {
	if err := p.say(message{Say: sayVerdict, Verdict: &ours}); err != nil {
		return theirs, err
	}
	if theirs, err = await(ctx, p, p.verdict); err != nil {
		return theirs, err
	}
	if err = p.say(message{Say: sayHeard}); err == nil {
		_, err = await(ctx, p, p.heard)
	}
	return theirs, err
}

// close says why we end, if we do so before the end, and waits for the peer to hang up, too, so that all that was said
// has arrived. As TCP does (TIME-WAIT) it stays a moment longer, for the peer to hear that we have heard that.
func (p *peer) close(why error) {
	close(p.stop)
	p.over.Store(true)
	if why != nil {
		_ = p.say(message{Say: sayEnd, Text: reason(why)})
	}
	_ = p.conn.CloseWrite()
	select {
	case <-p.gone:
	case <-time.After(min(limits.OtherHost.Here(), p.silence)):
	}
	_ = p.conn.Close()
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
	if theirs.Protocol != h.Protocol {
		return fmt.Errorf("the other host has another version of vnic, whose protocol is %d, and this one's %d",
			theirs.Protocol, h.Protocol)
	}
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
