package servelab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"vnic.dev/vnic/internal/agent"
	"vnic.dev/vnic/internal/elfdeps"
)

// curl is this machine's curl. files are curl and its libraries, by their paths in a guest; nil: this machine
// has no curl.
type curl struct {
	dir   string // folder for the file that get downloads
	path  string
	files map[string]string
}

func findCurl(dir string) (c curl, err error) {
	c.dir = dir
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

func curlArgs(prog, server, to string) []string {
	return []string{prog, "--silent", "--show-error", "--fail", "--noproxy", "*", "--max-time", "60", "--output", to,
		"http://" + server + stuffPath}
}

func (g *guest) get(ctx context.Context, server string, option ...string) error {
	var r agent.ExecResult
	if err := g.Run(ctx, &r, append(curlArgs("/bin/curl", server, gotFile), option...)); err != nil {
		return err
	}
	if r.Status != 0 {
		return fmt.Errorf("curl %s: status %d: %s", server, r.Status, strings.TrimSpace(r.Stderr))
	}
	return g.Call(ctx, "stock.got", args{Addr: gotFile}, nil)
}

func (c curl) get(ctx context.Context, server string) error {
	to := filepath.Join(c.dir, "got")
	a := curlArgs(c.path, server, to)
	if out, err := exec.CommandContext(ctx, a[0], a[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("curl %s: %w: %s", server, err, out)
	}
	return got(to)
}
