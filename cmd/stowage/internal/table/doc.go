// Package table displays storage to users: as a table, as a table that is redrawn in place
// when storage changes, and as one line for each change if there is no terminal.
//
// It escapes control characters in the text of providers and users, so that the text cannot
// move the cursor or forge a line.
package table
