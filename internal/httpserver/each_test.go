package httpserver_test

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/job/load"
	"vnic.dev/vnic/internal/report/page"
	"vnic.dev/vnic/internal/report/stat"
	"vnic.dev/vnic/internal/testkit"
)

// each starts the HTTP servers of vnic until the end of the test, and returns for each a URL and the maximum number of
// connections.
func each(t *testing.T) map[string]struct {
	url   string
	conns int
} {
	t.Helper()
	t.Setenv(stat.EnvDir, t.TempDir())
	counters := testkit.Must(stat.Start(stat.Options{Command: "serve", Metrics: "localhost:0"}))(t)
	t.Cleanup(counters.Close)
	recorder := page.Record(counters.Page)
	t.Cleanup(recorder.Close)
	shown := testkit.Must(page.Serve("localhost:0", recorder, nil))(t)
	t.Cleanup(shown.Close)
	o := load.Defaults()
	o.Size = 1000
	file := testkit.Must(o.Serve())(t)
	t.Cleanup(func() { testkit.OK(t, file.Close()) })
	return map[string]struct {
		url   string
		conns int
	}{
		"metrics": {counters.MetricsURL(), 64}, "page": {shown.URL() + "state.json", 64}, "load": {file.URL, 128},
	}
}

// ask sends a GET request for a URL, with a Host header, over c. Its result reads the response; status 0: there is
// none, as on a closed connection.
func ask(t *testing.T, c net.Conn, url, host string) (answer func() (status int, body string)) {
	t.Helper()
	r := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	r.Host = host
	_ = r.Write(c)
	return func() (int, string) { return answerOf(t, c, r) }
}

func answerOf(t *testing.T, c net.Conn, r *http.Request) (status int, body string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), r)
	if err != nil {
		return 0, ""
	}
	defer resp.Body.Close()
	return resp.StatusCode, string(testkit.Must(io.ReadAll(resp.Body))(t))
}

func dial(t *testing.T, url string) net.Conn {
	t.Helper()
	addr, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	c := testkit.Must(net.Dial("tcp", addr))(t)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Invariant: httpserver: Each HTTP server of vnic refuses a request whose Host is neither an
// address, localhost, the name that the user gave nor, at all addresses, the machine's name, and
// has a bounded number of connections.
func TestEachServerIsGuarded(t *testing.T) {
	testkit.LeavesNothing(t)
	for name, s := range each(t) {
		t.Run(name, func(t *testing.T) {
			for host, want := range map[string]int{"localhost": 200, "127.0.0.1:1": 200, "[::1]:80": 200, "evil.example": 421,
				"evil.example:80": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421, "guest0": 421} {
				c := dial(t, s.url)
				status, body := ask(t, c, s.url, host)()
				if status != want || (want == 421) != strings.Contains(body, "is no name of this server: open http://127.0.0.1:") {
					t.Errorf("%s: %d: %.80q", host, status, body)
				}
				testkit.OK(t, c.Close())
			}
			served := func() bool {
				status, _ := ask(t, dial(t, s.url), s.url, "localhost")()
				return status == 200
			}
			testkit.Eventually(t, "a place", served)
			var all []net.Conn
			var answers []func() (int, string)
			for range s.conns + 10 { // all at once: idle connections are closed after some seconds
				c := dial(t, s.url)
				all, answers = append(all, c), append(answers, ask(t, c, s.url, "localhost"))
			}
			open := 0
			for _, answer := range answers {
				if status, _ := answer(); status != 0 { // may be 503, of a busy server
					open++
				}
			}
			if open > s.conns || open < s.conns/2 {
				t.Errorf("%d connections, not %d at most", open, s.conns)
			}
			for _, c := range all {
				testkit.OK(t, c.Close())
			}
			testkit.Eventually(t, "a place for somebody else", served)
		})
	}
}

// Invariant: httpserver: No other package of vnic makes an HTTP server.
func TestNobodyElseServesHTTP(t *testing.T) {
	files := 0
	root := "../.."
	testkit.OK(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (slices.Contains([]string{"test", "tools", "internal/httpserver"}, rel) ||
			d.Name() == "testdata" || rel != "." && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		files++
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if pkg, ok := s.X.(*ast.Ident); ok && pkg.Name == "http" && (s.Sel.Name == "Server" ||
				strings.HasPrefix(s.Sel.Name, "Serve") && !strings.HasPrefix(s.Sel.Name, "ServeContent") &&
					s.Sel.Name != "ServeMux" && s.Sel.Name != "ServeFile" || strings.HasPrefix(s.Sel.Name, "ListenAndServe")) {
				t.Errorf("%s: http.%s: use internal/httpserver", rel, s.Sel.Name)
			}
			return true
		})
		return nil
	}))
	if files < 300 {
		t.Errorf("looked at %d files", files)
	}
}
