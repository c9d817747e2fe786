package proc

import (
	"os"
	"os/exec"
	"syscall"
)

// Sweep removes a directory when this process ends, also by SIGKILL, unless /bin/sh cannot be started. It
// returns a function that removes the directory now.
//
// A shell waits for the end of its input, in a process group of its own: a signal to our group does not end it. It then
// tries to remove dir up to eight times, because processes that we started may still be writing there.
func Sweep(dir string) (now func()) {
	const script = `read -r _; for i in 1 2 3 4 5 6 7 8; do rm -rf -- "$1" && [ ! -e "$1" ] && exit; sleep 0.2; done ` +
		`2>/dev/null`
	cmd := exec.Command("/bin/sh", "-c", script, "sh", dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return func() { _ = os.RemoveAll(dir) }
	}
	return func() {
		_ = os.RemoveAll(dir)
		_ = in.Close()
		_ = cmd.Wait()
	}
}
