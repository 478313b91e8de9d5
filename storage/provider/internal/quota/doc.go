// Package quota bounds what a directory may hold, by the project quota that ext4
// and xfs have when they are mounted with the option prjquota.
//
// A project is a number that each file has; a directory hands its own down to what
// is made in it. Project 0 is that of all other files. The filesystem counts what
// the files of a project use, and refuses to give them more than the project's
// limit. On ext4 a process with CAP_SYS_RESOURCE is not refused. A filesystem whose
// directories hand down their project shows the limit as its size to whoever asks
// in one of them (df).
//
// The names that a machine's administrator gives to projects, in /etc/projid and
// /etc/projects, are neither read nor written.
package quota
