package run

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/lab/labfile"
	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/transfer"
)

// hosts has the options of two hosts, both in this process, for guests a and b of a lab file, joined by uplinks.
type hosts struct {
	t    *testing.T
	file string
	o    [2]Options
}

// aFile writes a lab file of two equal guests, and returns its name. The uplink of a's host listens at the socket
// listen, and that of b's host connects to the socket connect.
func aFile(t *testing.T, guest, more, listen, connect string) string {
	return file(t, guest, fmt.Sprintf("%s\nuplinks: [{name: up0, of: a, stream: {listen: %s}}, "+
		"{name: up0, of: b, stream: {connect: %s}}]\n", more, listen, connect))
}

const aGuest = "nics: [{name: nic0}], gpus: [{name: gpu0}]"

func newHosts(t *testing.T, file string, rails int) *hosts {
	h := &hosts{t: t, file: file}
	for i := range h.o {
		h.o[i] = h.host(i, file, rails)
	}
	return h
}

func (h *hosts) host(i int, file string, rails int) Options {
	o := Defaults()
	o.InProc, o.Size, o.Seed, o.StallSecs, o.PeerSecs = true, 1<<20, 7, 30, 60
	o.Half = string("ab"[i])
	l := testkit.Must(labfile.Load(file, nil))(h.t)
	l.Sow(o.Seed)
	o.Uplinks = l.UplinksOf(o.Half)
	o.Take(l, rails)
	return o
}

// run runs both halves. b's half starts at the first note of a's, or when a's has ended.
func (h *hosts) run() (rep [2]*Report, err [2]error) {
	h.t.Helper()
	return h.runUntil([2]context.Context{h.t.Context(), h.t.Context()})
}

func (h *hosts) runUntil(ctx [2]context.Context) (rep [2]*Report, err [2]error) {
	h.t.Helper()
	listens := make(chan struct{})
	var once sync.Once
	h.o[0].Note = func(string, ...any) { once.Do(func() { close(listens) }) }
	var wg sync.WaitGroup
	for i := range h.o {
		testkit.OK(h.t, h.o[i].Check())
	}
	wg.Go(func() {
		rep[0], err[0] = Do(ctx[0], h.o[0])
		once.Do(func() { close(listens) })
	})
	<-listens
	wg.Go(func() { rep[1], err[1] = Do(ctx[1], h.o[1]) })
	wg.Wait()
	return rep, err
}

// Two hosts prove their own sides, and report that the other has proved its side.
//
// Invariant: run: Each of two hosts proves its own side of a transfer.
func TestHalves(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	for _, c := range []struct {
		name, digest string
		rails        int
		bidir        bool
	}{{"one_way", DigestPieces, 1, false}, {"both_ways", DigestSHA256, 2, true}} {
		t.Run(c.name, func(t *testing.T) {
			up := t.TempDir() + "/up"
			h := newHosts(t, aFile(t, "nics: [{name: nic0, gpus: [gpu0]}, {name: nic1, gpus: [gpu1]}], "+
				"gpus: [{name: gpu0}, {name: gpu1}]", "", up, up), c.rails)
			for i := range h.o {
				h.o[i].Bidir, h.o[i].Digest, h.o[i].Audit = c.bidir, c.digest, !c.bidir
			}
			rep, err := h.run()
			testkit.OK(t, errors.Join(err[:]...))
			for i, r := range rep {
				validReport(t, r)
				if r.Half.Guest != h.o[i].Half || r.Half.Peer == r.Half.Guest || !*r.Half.PeerProved || r.Half.PeerSays != "" {
					t.Errorf("%+v", r.Half)
				}
				if s := r.subtitle(); !strings.Contains(s, "guest "+r.Half.Guest+" in one process, guest "+r.Half.Peer+
					" on another host") {
					t.Error(s)
				}
				var b strings.Builder
				testkit.OK(t, r.Table(&b))
				if sent := strings.Contains(b.String(), "sent from"); sent != (i == 0 || c.bidir) {
					t.Errorf("%s", &b)
				}
			}
			for i := range rep[0].Rails {
				a, b := &rep[0].Rails[i], &rep[1].Rails[i]
				if a.SHA256 != b.SHA256 || a.SHA256 == "" || a.From != b.From {
					t.Errorf("%+v\n%+v", a, b)
				}
				if strings.HasPrefix(a.From, "b.") {
					a, b = b, a
				}
				sent, got := a.TX, b.RX
				if a.Mode == transfer.Copy {
					sent.Device, sent.Host, got.Device, got.Host = sent.Host, sent.Device, got.Host, got.Device
				}
				if sent.Host+got.Host != 0 || sent.Device < a.Bytes || got.Device < b.Bytes || a.Bytes != h.o[0].Size ||
					b.Bytes != h.o[0].Size || a.RX != (Where{}) || b.TX != (Where{}) {
					t.Errorf("%+v\n%+v", a, b)
				}
				if a.Audit == nil {
					continue
				}
				if hits := a.Audit.HitsReceiver + b.Audit.HitsSender; hits != 0 ||
					(a.Mode == transfer.Copy) != (a.Audit.HitsSender > 0 && b.Audit.HitsReceiver > 0) {
					t.Errorf("%+v\n%+v", a.Audit, b.Audit)
				}
			}
		})
	}
}

// If b's payload goes through host memory in mode devmem, the run fails on both hosts.
//
// Invariant: run: A run of a half succeeds only if both hosts have proved their halves.
func TestHalfIsNotProved(t *testing.T) {
	testkit.LeavesNothing(t)
	up := t.TempDir() + "/up"
	h := newHosts(t, aFile(t, "sockets: [{name: s0}], switches: [{name: w, below: s0}], "+
		"nics: [{name: nic0, below: w, rate: 80Mbit}], gpus: [{name: gpu0, below: w}]",
		"script: [{at: 0s, set: nic b.nic0 p2p=off}]", up, up), 1)
	for i := range h.o {
		h.o[i].Modes, h.o[i].Size = []string{transfer.Devmem}, 4<<20
	}
	rep, err := h.run()
	for i := range err {
		testkit.ErrorIs(t, err[i], ErrProof)
		validReport(t, rep[i])
	}
	const wrong = "mode devmem, a.nic0 to b.nic0: payload in host memory: 0 bytes sent"
	testkit.ErrorSays(t, err[0], "says the host of guest b: "+wrong)
	testkit.ErrorSays(t, err[1], "should:\n"+wrong)
	if *rep[0].Half.PeerProved || !*rep[1].Half.PeerProved || rep[0].Rails[0].TX.Host != 0 ||
		rep[1].Rails[0].RX.Host == 0 || strings.Contains(err[1].Error(), "says") {
		t.Errorf("%+v, %+v; %v", rep[0].Half, rep[1].Half, err[1])
	}
	var b strings.Builder
	testkit.OK(t, rep[0].Table(&b))
	if !strings.Contains(b.String(), "of its own: NOT PROVED: mode devmem, a.nic0") {
		t.Error(b.String())
	}
}

// If two hosts differ in a setting that must be equal, as --seed, or in their lab files, both name the difference.
func TestHalvesThatDoNotFit(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	for _, c := range []struct {
		name   string
		change func(h *hosts, b *Options)
		a, b   string
	}{
		{"seeds", func(_ *hosts, b *Options) { b.Seed = 8 }, "--seed is 7 here, and 8 on the other host: give both the same",
			"--seed is 8 here, and 7 on the other host"},
		{"sizes", func(_ *hosts, b *Options) { b.Size = 2 << 20 }, "--size is 1M here, and 2M on the other host",
			"--size is 2M here, and 1M"},
		{"modes", func(_ *hosts, b *Options) { b.Modes = []string{transfer.Copy} },
			"--mode is devmem and copy here, and copy on the other host", "--mode is copy here"},
		{"directions", func(_ *hosts, b *Options) { b.Bidir = true }, "--bidir is false here, and true on the other host",
			"--bidir is true here"},
		{"files", func(h *hosts, b *Options) {
			text := strings.Replace(string(testkit.Must(os.ReadFile(h.file))(h.t)), "name: gpu0}",
				"name: gpu0, memory: 128M}", 1)
			other := h.t.TempDir() + "/lab.yaml"
			testkit.OK(h.t, os.WriteFile(other, []byte(text), 0o600))
			*b = h.host(1, other, 1)
		}, `the other host's lab file is another one: "memory: 64M" here, "memory: 128M" there`,
			`"memory: 128M" here, "memory: 64M" there`},
	} {
		t.Run(c.name, func(t *testing.T) {
			up := t.TempDir() + "/up"
			h := newHosts(t, aFile(t, aGuest, "", up, up), 1)
			c.change(h, &h.o[1])
			_, err := h.run()
			testkit.ErrorSays(t, err[0], c.a)
			testkit.ErrorSays(t, err[1], c.b)
		})
	}
}

// If both hosts run guest a, at least one ends with an error that says so.
func TestHalvesOfOneGuest(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	up := t.TempDir() + "/up"
	h := newHosts(t, aFile(t, aGuest, "", up, up), 1)
	h.o[1] = h.host(0, h.file, 1)
	h.o[1].Uplinks = testkit.Must(labfile.Load(h.file, nil))(t).UplinksOf("b")
	h.o[0].PeerSecs, h.o[1].PeerSecs = 5, 5
	_, err := h.run()
	const twice, nobody = "the other host runs guest a, too", "no vnic that runs guest b came in 5s: start it"
	for _, e := range err {
		s := fmt.Sprint(e)
		if !strings.Contains(s, twice) && !strings.Contains(s, nobody) && !strings.Contains(s, "up0: the peer has hung up") {
			t.Error(s)
		}
	}
	if s := fmt.Sprint(err); !strings.Contains(s, twice) {
		t.Error(s)
	}
}

// A host gives up waiting for the other after PeerSecs seconds, and ends if its uplink cannot connect.
func TestHalfAlone(t *testing.T) {
	if testing.Short() {
		t.Skip("waits")
	}
	testkit.LeavesNothing(t)
	up := t.TempDir() + "/up"
	for i := range 2 {
		h := newHosts(t, aFile(t, aGuest, "", up, up), 1)
		h.o[i].PeerSecs = 1
		h.o[i].Uplinks = h.o[0].Uplinks
		testkit.ErrorSays(t, testkit.Err(Do(t.Context(), h.o[i])),
			fmt.Sprintf("no vnic that runs guest %c came in 1s: start it on the other host with --guest", "ba"[i]))
	}
	h := newHosts(t, aFile(t, aGuest, "", up, up), 1)
	testkit.ErrorSays(t, testkit.Err(Do(t.Context(), h.o[1])), "uplink up0: ", "start the listener there first")
}

// If one host is stopped, the other's error names the reason.
func TestHalfEndsInTheMiddle(t *testing.T) {
	testkit.LeavesNothing(t)
	for i := range 2 {
		up := t.TempDir() + "/up"
		h := newHosts(t, aFile(t, aGuest, "", up, up), 1)
		stop := errors.New("stopped by its user")
		ctx := [2]context.Context{t.Context(), t.Context()}
		var cancel context.CancelCauseFunc
		ctx[i], cancel = context.WithCancelCause(t.Context())
		for j := range h.o {
			h.o[j].Size = 1 << 40
		}
		h.o[i].Progress = func(_ string, done, _ uint64) {
			if done > 0 {
				cancel(stop)
			}
		}
		_, err := h.runUntil(ctx)
		testkit.ErrorIs(t, err[i], stop)
		testkit.ErrorSays(t, err[1-i], fmt.Sprintf("the host of guest %c ended: stopped by its user", "ab"[i]))
	}
}

// If the network between the hosts loses everything, or breaks, both end with an error.
func TestHalvesAreCutApart(t *testing.T) {
	if testing.Short() {
		t.Skip("waits")
	}
	testkit.LeavesNothing(t)
	for _, breaks := range []bool{false, true} {
		dir := t.TempDir()
		n := &cable{t: t, to: dir + "/a"}
		l := testkit.Must(net.Listen("unix", dir+"/b"))(t)
		n.work.Go(func() { n.join(l) })
		h := newHosts(t, aFile(t, aGuest, "", dir+"/a", dir+"/b"), 1)
		for j := range h.o {
			h.o[j].Size, h.o[j].StallSecs = 1<<40, 6
		}
		h.o[1].Progress = func(_ string, done, _ uint64) {
			if done > 0 {
				n.cut(breaks)
			}
		}
		_, err := h.run()
		testkit.ErrorSays(t, err[0], "nothing has come from the host of guest b for 2s")
		if breaks { // b's uplink, which has connected, ends with an error; a's listens for another connection
			testkit.ErrorSays(t, err[1], "what leads to the host of guest a ended: uplink up0: ")
		} else {
			testkit.ErrorSays(t, err[1], "nothing has come from the host of guest a for 2s")
		}
		n.cut(true)
		testkit.OK(t, l.Close())
		n.work.Wait()
	}
}

type cable struct {
	t    *testing.T
	to   string
	work sync.WaitGroup

	mu    sync.Mutex
	ends  []net.Conn // under mu
	stuck bool       // under mu; data is lost
}

func (n *cable) join(l net.Listener) {
	c, err := l.Accept()
	if err != nil {
		return
	}
	d := testkit.Must(net.Dial("unix", n.to))(n.t)
	n.mu.Lock()
	n.ends = []net.Conn{c, d}
	n.mu.Unlock()
	n.work.Go(func() { _, _ = io.Copy(n.carries(c), d) })
	n.work.Go(func() { _, _ = io.Copy(n.carries(d), c) })
}

// carries returns a writer to c that discards everything once the cable is cut.
func (n *cable) carries(c net.Conn) io.Writer {
	return writerFunc(func(b []byte) (int, error) {
		n.mu.Lock()
		stuck := n.stuck
		n.mu.Unlock()
		if stuck {
			return len(b), nil
		}
		return c.Write(b)
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// cut makes the cable lose data from now on; if breaks is true, it closes the connections, too.
func (n *cable) cut(breaks bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stuck = true
	for _, c := range n.ends {
		if breaks {
			_ = c.Close()
		}
	}
}

func TestHalfChecks(t *testing.T) {
	up, mac := t.TempDir()+"/up", lab.MAC(hostMAC+1)
	for want, change := range map[string]func(o *Options){
		"--guest c: the lab file has no such guest, but a, b":             func(o *Options) { o.Half = "c" },
		"--guest a: nothing leads to the host of guest b: name an uplink": func(o *Options) { o.Uplinks = nil },
		"--guest a: --scale and --check are of links of both guests":      func(o *Options) { o.Scale = "auto" },
		"--guest a: qemu or inproc; or a guest of a lab file, with --lab": func(o *Options) { o.Lab, o.Rails = nil, 0 },
		"--peer-wait 0: at least 1 second":                                func(o *Options) { o.PeerSecs = 0 },
		"a.nic0 is of model gve, and guests in this process have virtio only": func(o *Options) {
			o.Lab.Guests[0].NICs[0].Model = NICGVE
		},
		"NIC b.nic0 is in 10.118.0.0/16, and the two hosts meet in 10.118.109.0/24: give it another ipv4": func(o *Options) {
			o.Lab.Guests[1].NICs[0].Addr4 = netip.MustParsePrefix("10.118.0.9/16")
		},
		"NIC a.nic0 has the mac " + net.HardwareAddr(mac[:]).String() + ", which is a host's own": func(o *Options) {
			o.Lab.Guests[0].NICs[0].MAC = mac
		},
	} {
		h := newHosts(t, aFile(t, aGuest, "", up, up), 1)
		change(&h.o[0])
		testkit.ErrorSays(t, h.o[0].Check(), want)
	}
	h := newHosts(t, aFile(t, aGuest, "", up, up), 1)
	h.o[0].Lab.Guests[1].NICs[0].Model = NICGVE // NIC of a guest on the other host
	testkit.OK(t, h.o[0].Check())
}

// An MTU that is too large for the uplink's network is refused.
func TestHalfOfTooLongPackets(t *testing.T) {
	testkit.LeavesNothing(t)
	x, y := testkit.Loopback()
	h := newHosts(t, file(t, "nics: [{name: nic0, mtu: 65521}], gpus: [{name: gpu0}]", fmt.Sprintf(
		"uplinks: [{name: up0, vxlan: {local: \"%s:4787\", remote: \"%s:4787\", vni: 42}}]", x, y)), 1)
	testkit.ErrorSays(t, testkit.Err(Do(t.Context(), h.o[0])), "uplink up0: it carries packets of ", "an MTU of 65521")
}

// A host goes on waiting after a connection that sends no valid hello, or that is closed after one.
func TestHalfWaitsOnBehindStrangers(t *testing.T) {
	testkit.Slow(t)
	testkit.LeavesNothing(t)
	up := t.TempDir() + "/up"
	h := newHosts(t, aFile(t, aGuest, "", up, up), 1)
	listens := make(chan struct{})
	var once sync.Once
	h.o[0].Note = func(string, ...any) { once.Do(func() { close(listens) }) }
	type result struct {
		rep *Report
		err error
	}
	done := make(chan result, 1)
	go func() {
		rep, err := Do(t.Context(), h.o[0])
		once.Do(func() { close(listens) })
		done <- result{rep, err}
	}()
	<-listens
	b := &h.o[1]
	d := b.halve(b.Lab.Complete())
	l := testkit.Must(lab.Open(lab.Description{Guests: d.Guests[1:]}, lab.Options{Services: lab.Uplinks(b.Uplinks, nil)}))(t)
	stranger := testkit.Must(newHost(l.Port(0), hostAddr(0).Addr(), b))(t)
	ours := testkit.Must(b.hello())(t)
	args := testkit.Must(json.Marshal(ours))(t)
	text := fmt.Sprintf(`{"event":"hello","args":%s,"hello":{"protocol":%d}}`, args, protocol)
	for _, says := range []string{"", "GET / HTTP/1.1\n", "{}\n", text + "\n"} {
		c := testkit.Must(stranger.dial(t.Context()))(t)
		testkit.Must(c.Write([]byte(says)))(t)
		testkit.OK(t, c.Close())
	}
	testkit.OK(t, errors.Join(stranger.Close(), l.Close()))
	_, err := Do(t.Context(), *b)
	r := <-done
	testkit.OK(t, errors.Join(err, r.err))
	if !*r.rep.Half.PeerProved {
		t.Errorf("%+v", r.rep.Half)
	}
}
