package page

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"vnic.dev/vnic/internal/limits"
	"vnic.dev/vnic/internal/report/stat"
	"vnic.dev/vnic/internal/testkit"
)

// serving returns a server, which ends with the test, and a client without keep-alive.
func serving(t *testing.T, read func() *stat.Page, patience time.Duration) (*Server, *http.Client) {
	t.Helper()
	r := newRecorder(read)
	s := testkit.Must(serve("localhost:0", r, nil, patience))(t)
	t.Cleanup(s.Close)
	tr := &http.Transport{DisableKeepAlives: true}
	return s, &http.Client{Transport: tr}
}

type answer struct {
	status int
	header http.Header
	body   string
}

func get(t *testing.T, c *http.Client, url string, change func(*http.Request)) answer {
	t.Helper()
	req := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	if change != nil {
		change(req)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return answer{resp.StatusCode, resp.Header, string(testkit.Must(io.ReadAll(resp.Body))(t))}
}

func event(t *testing.T, r *bufio.Reader) (name, data string) {
	t.Helper()
	for {
		l := testkit.Must(r.ReadString('\n'))(t)
		switch l = strings.TrimSuffix(l, "\n"); {
		case l == "" && name != "":
			return name, data
		case strings.HasPrefix(l, "event: "):
			name = l[len("event: "):]
		case strings.HasPrefix(l, "data: "):
			data = l[len("data: "):]
		}
	}
}

func stream(t *testing.T, s *Server, c *http.Client) *bufio.Reader {
	t.Helper()
	req := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"events", nil))(t)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	testkit.Equal(t, "type", resp.Header.Get("Content-Type"), "text/event-stream")
	return bufio.NewReader(resp.Body)
}

// Invariant: page: A page is sent the history, then the current states, and gets an event when vnic
// ends.
func TestEventsGiveStates(t *testing.T) {
	s, c := serving(t, small, limits.LocalClient.Here())
	r := stream(t, s, c)
	name, data := event(t, r)
	testkit.Equal(t, "event", name, "history")
	if !strings.Contains(data, `"samples":[{"t":`) {
		t.Error(data)
	}
	for range 3 {
		name, data = event(t, r)
		testkit.Equal(t, "event", name, "state")
		var st struct {
			Page struct {
				Command  string          `json:"command"`
				Machines []stat.Machine  `json:"machines"`
				Events   []stat.Event    `json:"events"`
				Memory   json.RawMessage `json:"memory"`
			} `json:"page"`
			Recording struct {
				Samples []json.RawMessage `json:"samples"`
			} `json:"recording"`
		}
		testkit.OK(t, json.Unmarshal([]byte(data), &st))
		if st.Page.Command != "run" || len(st.Page.Machines) != 1 || len(st.Page.Events) != 1 ||
			string(st.Page.Memory) != "[]" || len(st.Recording.Samples) != 1 {
			t.Errorf("%s", data)
		}
		s.recorder.look(true)
	}
	go s.Close() // Cleanup calls Close again
	for name != "end" {
		name, _ = event(t, r)
	}
}

func TestStateAndPage(t *testing.T) {
	s, c := serving(t, small, limits.LocalClient.Here())
	if a := get(t, c, s.URL()+"state.json", nil); a.status != 200 || !strings.Contains(a.body, `"command":"run"`) {
		t.Errorf("%+v", a)
	}
	if a := get(t, c, s.URL(), nil); a.status != 200 || !strings.Contains(a.body, `id="data">null<`) ||
		a.header.Get("Content-Security-Policy") != assemble().policy || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("%d, %v", a.status, a.header)
	}
	if a := get(t, c, s.URL()+"nothing", nil); a.status != 404 {
		t.Errorf("%+v", a)
	}
}

// An attacker's host name may resolve to this machine (DNS rebinding).
//
// Invariant: page: A request whose Host is neither an address, localhost, the name that the user
// gave nor, for a server at all addresses, the machine's name is refused.
func TestHostIsChecked(t *testing.T) {
	s, c := serving(t, small, limits.LocalClient.Here())
	for _, x := range []struct {
		host string
		want int
	}{
		{"localhost", 200}, {"localhost:8080", 200}, {"127.0.0.1:1", 200}, {"[::1]:8080", 200}, {"[::1]", 200},
		{"192.0.2.7", 200}, {"evil.example", 421}, {"evil.example:80", 421}, {"localhost.evil.example", 421},
		{"127.0.0.1.evil.example", 421},
	} {
		for _, path := range []string{"", "state.json", "events"} {
			if path == "events" && x.want == 200 {
				continue // the stream does not end
			}
			a := get(t, c, s.URL()+path, func(r *http.Request) { r.Host = x.host })
			if a.status != x.want || x.want == 421 && !strings.Contains(a.body, "open http://127.0.0.1:") {
				t.Errorf("%s of %s: %d: %s", path, x.host, a.status, a.body)
			}
		}
	}
}

// Invariant: page: A client that does not read is dropped, and others continue.
func TestSlowClientIsDropped(t *testing.T) {
	testkit.Slow(t)
	p := large(1e12)
	s, c := serving(t, func() *stat.Page { return p }, 100*time.Millisecond)
	slow := testkit.Must(net.Dial("tcp", strings.Trim(s.URL()[len("http:"):], "/")))(t)
	defer slow.Close()
	testkit.OK(t, testkit.Err(io.WriteString(slow, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")))
	in := func() int { return len(s.pages) }
	testkit.Eventually(t, "the slow one to come", func() bool { return in() == 1 })
	testkit.Eventually(t, "the slow one to be dropped", func() bool {
		s.recorder.look(true)
		return in() == 0
	})
	r := stream(t, s, c)
	name, _ := event(t, r)
	testkit.Equal(t, "event", name, "history")
}

func TestCloseWaitsForNobody(t *testing.T) {
	p := large(1e12)
	s, _ := serving(t, func() *stat.Page { return p }, time.Hour)
	slow := testkit.Must(net.Dial("tcp", strings.Trim(s.URL()[len("http:"):], "/")))(t)
	defer slow.Close()
	testkit.OK(t, testkit.Err(io.WriteString(slow, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")))
	testkit.OK(t, testkit.Err(slow.Read(make([]byte, 1)))) // the response has begun
	s.Close()
}

// Invariant: page: At most 32 pages and 64 connections are open; the next page gets an error that
// says so.
func TestClientsAreBounded(t *testing.T) {
	s, c := serving(t, small, limits.LocalClient.Here())
	for range maxPages {
		r := stream(t, s, c)
		event(t, r)
	}
	a := get(t, c, s.URL()+"events", nil)
	if a.status != 503 || !strings.Contains(a.body, "32 pages are open: close one") {
		t.Errorf("%+v", a)
	}
	addr := strings.Trim(s.URL()[len("http:"):], "/")
	for range maxConns - maxPages {
		conn := testkit.Must(net.Dial("tcp", addr))(t)
		defer conn.Close()
	}
	testkit.Eventually(t, "all to be accepted", func() bool { return s.http.Conns() == maxConns })
	conn := testkit.Must(net.Dial("tcp", addr))(t)
	defer conn.Close()
	if n, err := conn.Read(make([]byte, 1)); err == nil {
		t.Errorf("one more gets %d bytes", n)
	}
}

func TestAddressesAreChecked(t *testing.T) {
	s, _ := serving(t, small, limits.LocalClient.Here())
	r := newRecorder(small)
	for addr, want := range map[string]string{
		"9":               "--http 9: not HOST:PORT, as localhost:8080",
		"localhost:x":     "--http localhost:x: not HOST:PORT, as localhost:8080",
		"localhost:65536": "--http localhost:65536: not HOST:PORT, as localhost:8080",
		"192.0.2.1:9":     "--http 192.0.2.1:9: listen tcp 192.0.2.1:9: bind: cannot assign requested address: give another",
		strings.Trim(s.URL()[len("http:"):], "/"): "address already in use: give another address",
	} {
		if x, err := Serve(addr, r, nil); err == nil {
			x.Close()
			t.Errorf("%s is taken", addr)
		} else {
			testkit.ErrorSays(t, err, want)
		}
	}
	testkit.OK(t, CheckAddr(""))
}

func ExampleServer() {
	r := Record(small)
	s, err := Serve("127.0.0.1:0", r, nil)
	if err != nil {
		panic(err)
	}
	s.Close()
	r.Close()
	fmt.Println(strings.HasPrefix(s.URL(), "http://127.0.0.1:"), r.Seen())
	// Output: true true
}
