// Package badinput is the table of bad inputs: what a hostile frontend or guest sends, what it may
// cost, and the answer.
//
// Each row goes to a real `vnic serve`, a process of its own, from a client that has no part of this module between
// itself and the socket that it does not misuse. Beside it, two innocent guests on other ports of the same switch send
// each other one frame after another. After the row they must still do so, and the process must be as it was: memory,
// descriptors, processor time and lines of log are measured from outside (proc(5)) and held to the row's bounds. How
// long an innocent frame took at worst is held to a bound as well, in terms of what it takes while nothing bad happens.
//
// table.go is the table as data; classes and layers are those of docs/threat-model.md. A cell without a row says why.
package badinput
