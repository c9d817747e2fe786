// Package proc starts processes that do not outlive this one, apart from Sweep's.
//
// A Child runs until it ends or Child.End ends it; a Command is a tool that runs to its end or to the end of a context.
package proc
