package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"vnic.dev/vnic/guest-images/agent"
	"vnic.dev/vnic/guest-images/elfdeps"
)

const (
	stuffPath = "/stuff"
	webPort   = 8000 // in guests
	gotFile   = "/got"
)

// serveHTTP has what curl and iPXE fetch.
func serveHTTP(l net.Listener) {
	mux := http.NewServeMux()
	mux.HandleFunc(stuffPath, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(stuff(whole)) })
	mux.HandleFunc(scriptPath, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(script)) })
	_ = http.Serve(l, mux)
}

// curl is this machine's, with what it needs in a guest; no files: there is none.
type curl struct {
	path  string
	files map[string]string
}

func findCurl() (c curl, err error) {
	if c.path, err = exec.LookPath("curl"); err != nil {
		return c, nil
	}
	libs, err := elfdeps.Finder{LibraryPath: filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))}.Find(c.path)
	c.files = map[string]string{"/bin/curl": c.path}
	for _, l := range libs {
		c.files[l] = l
	}
	return c, err
}

// curlArgs have it get the stuff of a server, as a file.
func curlArgs(prog, server, to string) []string {
	return []string{prog, "--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", "60", "--output", to,
		"http://" + server + stuffPath}
}

// get runs curl in the guest.
func (g *guest) get(ctx context.Context, server string, option ...string) error {
	var r agent.ExecResult
	if err := g.run(ctx, &r, append(curlArgs("/bin/curl", server, gotFile), option...)); err != nil {
		return err
	}
	if r.Status != 0 {
		return fmt.Errorf("curl %s: status %d: %s", server, r.Status, strings.TrimSpace(r.Stderr))
	}
	return g.Call(ctx, "stock.got", args{Addr: gotFile}, nil)
}

// get runs curl here.
func (c curl) get(ctx context.Context, server string) error {
	to := filepath.Join(*dir, "got")
	a := curlArgs(c.path, server, to)
	if out, err := exec.CommandContext(ctx, a[0], a[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("curl %s: %w: %s", server, err, out)
	}
	return got(to)
}

// got compares a file with what servers have, and removes it.
func got(file string) error {
	b, err := os.ReadFile(file)
	if err == nil && !bytes.Equal(b, stuff(whole)) {
		err = errors.New("it came changed")
	}
	if err := errors.Join(err, os.Remove(file)); err != nil {
		return fmt.Errorf("curl: %d bytes: %w", len(b), err)
	}
	return nil
}
