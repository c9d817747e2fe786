package stat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vnic.dev/vnic/internal/testkit"
	"vnic.dev/vnic/internal/wire"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// place sets EnvDir to a directory that does not exist yet, and returns the directory.
func place(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "run")
	t.Setenv(EnvDir, dir)
	return dir
}

func start(t *testing.T, o Options) *Server {
	t.Helper()
	s := testkit.Must(Start(o))(t)
	t.Cleanup(s.Close)
	return s
}

// many returns ports whose snapshot is larger than a socket's buffer.
func many() (ports []Port) {
	for i := range 5000 {
		ports = append(ports, Port{Name: fmt.Sprint("port", i), Kind: "host"})
	}
	return ports
}

func self(t *testing.T) *Snapshot {
	t.Helper()
	snap := testkit.Must(Read(t.Context(), os.Getpid()))(t)
	return snap
}

func TestSnapshotComesOverTheSocket(t *testing.T) {
	dir := place(t)
	s := start(t, Options{Command: "run"})
	if snap := self(t); snap.Command != "run" || snap.PID != os.Getpid() || len(snap.Ports) != 0 || snap.Uptime <= 0 {
		t.Errorf("%+v", snap)
	}
	s.SetPorts(func() []Port { return []Port{{Name: "a", Kind: "gve", MAC: [6]byte{2, 3}}, {Name: "a"}} })
	if p := self(t).Ports; len(p) != 2 || p[0].Name != "a" || p[0].MAC != "02:03:00:00:00:00" || p[1].Name != "a#2" ||
		p[1].MAC != "" {
		t.Errorf("%+v", p)
	}
	found, err := Find(t.Context())
	if err != nil || len(found) != 1 || found[0].PID != os.Getpid() {
		t.Errorf("found %v, %v", found, err)
	}
	s.SetPorts(many)
	testkit.Equal(t, "ports", len(self(t).Ports), 5000)
	st, err := os.Stat(dir)
	if err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
	s.Close()
	_, err = os.Stat(dir)
	testkit.ErrorIs(t, err, os.ErrNotExist)
	_, err = Read(t.Context(), os.Getpid())
	testkit.ErrorIs(t, err, ErrNone)
	if found, err := Find(t.Context()); !errors.Is(err, ErrNone) || found != nil {
		t.Errorf("after its end: %v, %v", found, err)
	}
}

// Invariant: vnic stat: A client that never reads keeps neither other clients from being answered
// nor a vnic from ending.
func TestClientThatNeverReads(t *testing.T) {
	dir := place(t)
	s := start(t, Options{patience: time.Hour})
	s.SetPorts(many)
	var held []net.Conn
	connect := func() {
		c := testkit.Must(net.Dial("unix", filepath.Join(dir, socketName())))(t)
		held = append(held, c)
		testkit.Must(io.WriteString(c, `{"id":1,"op":"snapshot","hello":{"protocol":2}}`+"\n"))(t)
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // its answer has begun
			t.Fatal(err)
		}
	}
	for range maxClients - 1 {
		connect()
	}
	self(t)
	connect()
	_, err := Read(t.Context(), os.Getpid())
	testkit.ErrorIs(t, err, ErrNone)
	for _, c := range held[:maxClients/2] {
		_ = c.Close()
	}
	for { // until the server has noticed that these clients are gone
		if _, err := Read(t.Context(), os.Getpid()); err == nil {
			break
		} else if !errors.Is(err, ErrNone) {
			t.Fatal(err)
		}
	}
	s.Close() // the other half of the clients still keep their connections open
	for _, c := range held {
		_ = c.Close()
	}
}

func TestServerThatSpeaksNonsense(t *testing.T) {
	dir := place(t)
	testkit.OK(t, os.Mkdir(dir, 0o700))
	l := testkit.Must(net.Listen("unix", filepath.Join(dir, "1"+suffix)))(t)
	defer l.Close()
	for says, want := range map[string]string{
		"": "does not answer", "{": "cannot be read", "[]": "cannot be read", "\x00\xff": "cannot be read",
		`{"schema":2}`: "process 1 is of an older vnic", `{"id":1,"hello":{"protocol":2},"ok":[]}`: "cannot unmarshal array",
	} {
		go answer(l, says)
		if _, err := Read(t.Context(), 1); says == "" && !errors.Is(err, ErrNone) || says != "" &&
			(err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v", says, err)
		}
	}
}

// Invariant: vnic stat: A directory of another user is not used.
func TestDirectoryOfAnotherUserIsRefused(t *testing.T) {
	base := t.TempDir()
	theirs, open, link, fine := filepath.Join(base, "theirs"), filepath.Join(base, "open"), filepath.Join(base, "link"),
		filepath.Join(base, "fine")
	for _, err := range []error{os.Mkdir(theirs, 0o700), os.Mkdir(open, 0o700), os.Chmod(open, 0o755),
		os.Mkdir(fine, 0o700), os.Symlink(fine, link)} {
		testkit.OK(t, err)
	}
	bad := map[string]string{open: "open to others", link: ""}
	if os.Geteuid() == 0 {
		testkit.OK(t, os.Chown(theirs, 65534, 65534))
		bad[theirs] = "belongs to user 65534"
	} else {
		t.Log("not root: cannot give a directory away")
	}
	for dir, why := range bad {
		if d, err := openDir(dir, true); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, %v", dir, d, err)
		}
		t.Setenv(EnvDir, dir)
		var log bytes.Buffer
		s := start(t, Options{Log: debugLog(&log)})
		s.Close()
		if entries, err := os.ReadDir(dir); len(entries) != 0 || err != nil ||
			!strings.Contains(log.String(), "level=WARN msg=\"no socket") {
			t.Errorf("%s: %v, %v, log %q", dir, entries, err, log.String())
		}
		_, err := Read(t.Context(), os.Getpid())
		testkit.ErrorIs(t, err, ErrNone)
		_, err = Find(t.Context())
		testkit.ErrorIs(t, err, ErrNone)
		testkit.ErrorSays(t, err, why)
	}
	if _, err := os.Stat(fine); err != nil {
		t.Error(err)
	}
}

// The socket of a living process without a listener stays: the process may be about to listen.
//
// Invariant: vnic stat: The socket of a killed vnic is removed.
func TestStaleSocketsAreSwept(t *testing.T) {
	dir := place(t)
	testkit.OK(t, os.Mkdir(dir, 0o700))
	dead := func() int {
		cmd := exec.Command("/bin/true")
		testkit.OK(t, cmd.Run())
		return cmd.Process.Pid
	}
	listen := func(pid int) net.Listener {
		l := testkit.Must(net.Listen("unix", filepath.Join(dir, fmt.Sprint(pid, suffix))))(t)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		return l
	}
	gone, parent, elsewhere := dead(), os.Getppid(), dead()
	listen(gone).Close()
	listen(parent).Close()
	listen(os.Getpid()).Close() // left by an earlier process with the same pid
	l := listen(elsewhere)
	defer l.Close()
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "notes"), nil, 0o600))
	s := start(t, Options{})
	self(t)
	for name, there := range map[string]bool{fmt.Sprint(gone, suffix): false, fmt.Sprint(parent, suffix): true,
		fmt.Sprint(elsewhere, suffix): true, "notes": true} {
		if _, err := os.Lstat(filepath.Join(dir, name)); (err == nil) != there {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.Close()
	_, err := os.Lstat(filepath.Join(dir, socketName()))
	testkit.ErrorIs(t, err, os.ErrNotExist)
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("others' directory: %v", err)
	}
}

func TestPlacesAreThisUsers(t *testing.T) {
	t.Setenv(EnvDir, "")
	t.Setenv("XDG_RUNTIME_DIR", "/x")
	tmp := fmt.Sprintf("/tmp/vnic-%d", os.Geteuid())
	if c := candidates(); c[0] != "/x/vnic" || c[len(c)-1] != tmp || len(c) != 3 {
		t.Errorf("%q", c)
	}
	t.Setenv("XDG_RUNTIME_DIR", "relative")
	if c := candidates(); len(c) != 2 {
		t.Errorf("%q", c)
	}
}

// Invariant: vnic stat: Counters seen from outside equal the counters of the run's report.
func TestMetricsAreServed(t *testing.T) {
	place(t)
	s := start(t, Options{Command: "serve", Metrics: "localhost:0"})
	s.SetPorts(func() []Port { return []Port{{Name: `a"b`, Kind: "host"}, {Name: `a"b`, Kind: "host"}} })
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(s.MetricsURL())
	testkit.OK(t, err)
	b, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	text := string(b)
	if err != nil || resp.StatusCode != 200 ||
		!strings.Contains(text, `vnic_link_packets_total{direction="rx",port="a\"b#2"} 0`) ||
		!strings.Contains(text, "process_resident_memory_bytes ") || !strings.Contains(text, "go_goroutines ") {
		t.Errorf("%v, %v: %s", resp.Status, err, text)
	}
	if _, err := Start(Options{Metrics: s.metrics.Addr()}); !errors.Is(err, unix.EADDRINUSE) ||
		!strings.Contains(err.Error(), "give another address") {
		t.Errorf("an address that is taken: %v", err)
	}
	for _, addr := range []string{"9118", "localhost", "localhost:http2", "localhost:70000", "::1:9118"} {
		_, err := Start(Options{Metrics: addr})
		testkit.ErrorSays(t, err, "not HOST:PORT")
	}
	s.Close()
	if resp, err := client.Get(s.MetricsURL()); err == nil {
		resp.Body.Close()
		t.Error("served after its end")
	}
}

func TestMetricsHandlerTakesGETOnly(t *testing.T) {
	h := metricsHandler(start(t, Options{}))
	for req, want := range map[string]int{"GET /metrics": 200, "GET /": 200, "POST /metrics": 405, "GET /debug": 404} {
		method, path, _ := strings.Cut(req, " ")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, path, nil))
		if w.Code != want {
			t.Errorf("%s: %d", req, w.Code)
		}
	}
}

func TestPageShowsTheCounters(t *testing.T) {
	place(t)
	s := start(t, Options{Command: "serve"})
	s.SetPorts(func() []Port { return []Port{{Name: "<script>", Kind: "host"}} })
	w := httptest.NewRecorder()
	metricsHandler(s).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	text := w.Body.String()
	for _, want := range []string{"<title>vnic serve ", "PORT  QUEUE", "&lt;script&gt;", `href="/metrics"`, "vnic stat "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q: %s", want, text)
		}
	}
	if strings.Contains(text, "<script>") || strings.Contains(text, "http://") || strings.Contains(text, "https://") ||
		w.Header().Get("Content-Type") != "text/html; charset=utf-8" {
		t.Errorf("%v: %s", w.Header(), text)
	}
}

func TestPagesAtOnceAreBounded(t *testing.T) {
	oneTooMany(t, "/", pagesAtOnce, "too many at once: try again\n")
}

func TestScrapesAtOnceAreBounded(t *testing.T) {
	oneTooMany(t, "/metrics", scrapesAtOnce, "Limit of concurrent requests reached (4), try again later.\n")
}

// oneTooMany checks that, while most requests for path are being answered, one more gets refusal and status 503, and
// that a later one is answered.
func oneTooMany(t *testing.T, path string, most int, refusal string) {
	t.Helper()
	place(t)
	s := start(t, Options{Command: "serve"})
	inside, leave := make(chan bool), make(chan bool)
	s.SetPorts(func() []Port { inside <- true; <-leave; return nil })
	h := metricsHandler(s)
	var wg sync.WaitGroup
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w
	}
	for range most {
		wg.Go(func() {
			if w := get(); w.Code != 200 {
				t.Errorf("inside: %d", w.Code)
			}
		})
	}
	for range most {
		<-inside
	}
	w := get()
	testkit.Equal(t, "one more", w.Code, 503)
	testkit.Equal(t, "answer", w.Body.String(), refusal)
	close(leave)
	wg.Wait()
	s.SetPorts(nil)
	testkit.Equal(t, "afterwards", get().Code, 200)
}

func TestBitRateHasThreeDigits(t *testing.T) {
	for n, want := range map[float64]string{0: "0 bit/s", 999: "999 bit/s", 1000: "1.00 kbit/s",
		16.777216e6: "16.8 Mbit/s", 123456e6: "123 Gbit/s"} {
		testkit.Equal(t, "rate", bitRate(n), want)
	}
}

func TestLinkCountersOfImpairments(t *testing.T) {
	for text, c := range map[string]wire.Counters{`"delay_full":0,"not_learned":0,`: {},
		`"delay_full":0,"duplicated":3,"corrupted":4,"marked":5,"not_learned":0,`: {Duplicated: 3, Corrupted: 4, Marked: 5}} {
		b := testkit.Must(json.Marshal(LinkCounters{Counters: c, Drops: map[string]uint64{"delay": 1}}))(t)
		var read LinkCounters
		testkit.OK(t, json.Unmarshal(b, &read))
		if !strings.Contains(string(b), text+`"drops":{"delay":1}`) || read.Counters != c || read.Drops["delay"] != 1 {
			t.Errorf("%s; %+v", b, read)
		}
	}
}

func TestTableShowsRatesAndTotals(t *testing.T) {
	before := &Snapshot{PID: 7, Command: "run", Uptime: 10,
		Ports: []PortCounters{{Name: "A", Link: LinkCounters{Counters: wire.Counters{Received: 10, ReceivedBytes: 1 << 20}},
			Queues: []Queue{{}, {Index: 1, Split: true, RX: Direction{Packets: 5, HeaderBytes: 24, DeviceBytes: 1000}}}}}}
	b := testkit.Must(json.Marshal(before))(t)
	now := new(Snapshot)
	testkit.OK(t, json.Unmarshal(b, now))
	now.Uptime = 12
	now.Ports[0].Link = LinkCounters{Counters: wire.Counters{Received: 2010, ReceivedBytes: 5 << 20},
		Drops: map[string]uint64{"no-buffer": 8}}
	now.Ports[0].Queues[1].RX = Direction{Packets: 2005, HeaderBytes: 24 + 2048, DeviceBytes: 1000 + 4<<20, Drops: 2}
	now.Ports = append(now.Ports, PortCounters{Name: "new"})
	table := func(a, b *Snapshot) string {
		var out bytes.Buffer
		testkit.OK(t, Table(&out, a, b))
		var lines []string
		for line := range strings.Lines(out.String()) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return strings.Join(lines, "\n") + "\n"
	}
	const rates = `vnic run, process 7, up 12s; per second:
PORT QUEUE PACKETS BIT RATE DEVICE GPU FILE HOST DROPS
A wire rx 1,000 16.8 Mbit/s
A wire tx 0 0 bit/s
A wire no-buffer 4
A 1 split rx 1,000 16.8 Mbit/s 16.8 Mbit/s 0 bit/s 0 bit/s 1
new wire rx 0 0 bit/s
new wire tx 0 0 bit/s
`
	testkit.Equal(t, "the table", table(before, now), rates)
	if got := table(nil, before); !strings.Contains(got, "since it began:") ||
		!strings.Contains(got, "A 1 split rx 5 1.0 KiB 1000 B") {
		t.Errorf("got %s", got)
	}
	began := &Snapshot{PID: 8, Command: "run", Uptime: 1}
	testkit.Equal(t, "the table", table(before, began), "vnic run, process 8, up 1s; since it began:\nno ports\n")
	smaller := &Snapshot{PID: 7, Uptime: 11,
		Ports: []PortCounters{{Name: "A", Link: LinkCounters{Counters: wire.Counters{Received: 3}}}}}
	if got := table(before, smaller); !strings.Contains(got, "A wire rx 3 0 bit/s") {
		t.Errorf("a port that began again: %s", got)
	}
}

func TestPortsComeAndGo(t *testing.T) {
	place(t)
	s := start(t, Options{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200 {
			s.SetPorts(many)
			s.SetPorts(nil)
		}
	}()
	for {
		if n := len(self(t).Ports); n != 0 && n != 5000 {
			t.Fatalf("%d ports", n)
		}
		select {
		case <-done:
			return
		case <-time.After(0):
		}
	}
}

func debugLog(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func TestRefusalsOfTheSandboxAreShown(t *testing.T) {
	place(t)
	for _, tt := range []struct {
		sandbox             *Sandbox
		json, metric, table string // "": not mentioned
	}{
		{nil, "", "", ""},
		{&Sandbox{Mode: "on"}, `"sandbox":{"mode":"on","refused":0}`, `vnic_sandbox_refused_total{mode="on"} 0`, ""},
		{&Sandbox{Mode: "on", Refused: 1234}, `"sandbox":{"mode":"on","refused":1234}`,
			`vnic_sandbox_refused_total{mode="on"} 1234`, "its sandbox refused 1,234 system calls"},
		{&Sandbox{Mode: "log", Refused: 2}, `"sandbox":{"mode":"log","refused":2}`,
			`vnic_sandbox_refused_total{mode="log"} 2`, "its sandbox would refuse 2 system calls"},
	} {
		s := start(t, Options{Command: "serve", Sandbox: func() *Sandbox { return tt.sandbox }})
		w := httptest.NewRecorder()
		metricsHandler(s).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		var table bytes.Buffer
		now := self(t)
		testkit.OK(t, Table(&table, nil, now))
		for _, x := range []struct{ text, want, none string }{
			{string(testkit.Must(json.Marshal(now))(t)), tt.json, `"sandbox"`},
			{w.Body.String(), tt.metric, "vnic_sandbox"},
			{table.String(), tt.table, "its sandbox"},
		} {
			if x.want != "" && !strings.Contains(x.text, x.want) || x.want == "" && strings.Contains(x.text, x.none) {
				t.Errorf("%+v: %q is not in, or %q is: %s", tt.sandbox, x.want, x.none, x.text)
			}
		}
		s.Close()
	}
}
