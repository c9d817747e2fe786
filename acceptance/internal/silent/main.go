// Command silent is a mirror that takes connections and never says a word: what a fetch waits for
// when it is interrupted. It prints its port.
package main

import (
	"fmt"
	"net"
	"os"
)

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, "silent:", err)
		os.Exit(1)
	}
	fmt.Println(l.Addr().(*net.TCPAddr).Port)
	var held []net.Conn // or the garbage collector would close them
	for {
		c, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "silent:", err)
			os.Exit(1)
		}
		held = append(held, c) //nolint:staticcheck // kept open
	}
}
