// Package cli is the stowage command: flags and arguments in, calls to the agent,
// text and an exit status out.
package cli
