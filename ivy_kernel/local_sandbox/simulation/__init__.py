"""Test instruments of the local sandbox: odd result shapes, hostile runners, remote control."""
