"""Runs a stock serving engine on a CANN runtime that records launches and computes nothing."""
