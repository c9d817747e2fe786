package selftest

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"vnic.dev/vnic/internal/job/selftest/ktap"
	"vnic.dev/vnic/internal/job/selftest/results"
)

// openLogs makes the directory Options.LogDir and in it the file consoleLog; without LogDir, consoleLog drops output.
func (b *bench) openLogs() error {
	dir := b.opt.LogDir
	b.consoleLog = io.Discard
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("--log: %w", err)
	}
	f, err := os.Create(filepath.Join(dir, "console.log"))
	if err != nil {
		return fmt.Errorf("--log: %w", err)
	}
	b.logs = append(b.logs, f)
	b.consoleLog = f
	return nil
}

// log opens the file to which a program's output in this column is appended; the caller closes it. Without
// Options.LogDir the returned writer drops the output.
func (b *bench) log(p *program, column results.Column) (io.WriteCloser, error) {
	if b.opt.LogDir == "" {
		return dropped{io.Discard}, nil
	}
	name := strings.ReplaceAll(p.name, "/", "_") + "-" + string(column) + ".log"
	f, err := os.OpenFile(filepath.Join(b.opt.LogDir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("--log: %w", err)
	}
	return f, nil
}

type dropped struct{ io.Writer }

func (dropped) Close() error { return nil }

// Line describes a program's results in one line.
func Line(p *results.Program) string {
	if p.Left != nil {
		return fmt.Sprintf("%-24s not run (%s): does not apply: %s", p.Name, p.Column, strings.Join(p.Left, ", "))
	}
	n := p.Count()
	line := fmt.Sprintf("%-24s %3d pass, %d fail, %d skip", p.Name, n[ktap.Pass], n.Bad(), n[ktap.Skip])
	if n[ktap.XFail] > 0 {
		line += fmt.Sprintf(", %d xfail", n[ktap.XFail])
	}
	line += fmt.Sprintf("%s, %.0f s", p.Column.Suffix(), p.Seconds)
	for i := range p.Splats {
		line += fmt.Sprintf("; the kernel: %s: %s", p.Splats[i].Kind, p.Splats[i].Title)
	}
	return line
}

func (o *Options) checkGDB() error {
	if o.GDB == 0 {
		return nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.GDB)))
	if err != nil {
		return fmt.Errorf("--gdb %d: %w", o.GDB, err)
	}
	return l.Close()
}
