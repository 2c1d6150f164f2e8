"""Does it pay?"""
