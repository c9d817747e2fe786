package servelab

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
)

const (
	stuffPath = "/stuff"
	webPort   = 8000 // in guests
	gotFile   = "/got"
)

func serveHTTP(l net.Listener) {
	mux := http.NewServeMux()
	mux.HandleFunc(stuffPath, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(stuff(whole)) })
	mux.HandleFunc(scriptPath, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(script)) })
	_ = http.Serve(l, mux)
}

// script is the script that iPXE fetches from scriptPath and runs; it prints scriptSays.
const (
	scriptPath = "/boot.ipxe"
	scriptSays = "this script came through the gateway"
	script     = "#!ipxe\necho " + scriptSays + "\n"
)

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
